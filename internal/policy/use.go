package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// use is what a tool would do with an input.
type use struct {
	commands []command
	writes   []string
	hosts    []string
	dir      string // where it runs; empty: the root
	reads    bool   // the tool is known to change nothing
}

func (u use) empty() bool { return len(u.commands) == 0 && len(u.writes) == 0 && len(u.hosts) == 0 }

// readers are tools that only look, of the agents that are around.
var readers = []string{
	"read", "read_file", "read_many_files", "view", "glob", "grep", "ls", "list", "list_directory", "list_files", "search",
	"search_file_content", "notebookread", "todoread", "todowrite",
}

// Members of inputs by what they say, as [member] spells them.
var (
	commandMembers = []string{"command", "cmd", "script", "commandline", "shellcommand"}
	scriptsMember  = "commands" // each text is a script
	wordMembers    = []string{"args", "arguments", "argv"}
	dirMembers     = []string{"workdir", "cwd", "workingdirectory"}
	pathMembers    = []string{
		"filepath", "path", "paths", "notebookpath", "filename", "file", "files", "targetfile", "targetpath", "destination", "dest", "dst", "newpath",
		"oldpath", "absolutepath", "relativepath", "outputpath", "outputfile",
	}
	hostMembers = []string{"url", "urls", "host", "hostname", "uri", "domain"}
)

// member is the name of a member in one spelling: agents write file_path and filePath.
func member(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// useOf reads a request. Members are found in whatever case they are written.
func useOf(q Request) (use, error) {
	members := map[string]json.RawMessage{}
	if len(q.Input) > 0 && string(q.Input) != "null" {
		given := map[string]json.RawMessage{}
		if err := json.Unmarshal(q.Input, &given); err != nil {
			return use{}, errors.New("want input that is a JSON object")
		}
		for name, value := range given {
			key := member(name)
			if _, twice := members[key]; twice {
				return use{}, fmt.Errorf("member %.40q is given twice", key)
			}
			members[key] = value
		}
	}
	tool := strings.ToLower(q.Tool)
	edits := strings.Contains(tool, "edit") || strings.Contains(tool, "str_replace")
	u := use{reads: slices.Contains(readers, tool) || edits && string(members["command"]) == `"view"`}
	if edits {
		delete(members, "command") // it names what to do with the file
	}
	return u, u.read(tool, members)
}

func (u *use) read(tool string, members map[string]json.RawMessage) (err error) {
	if err := u.readCommands(members); err != nil {
		return err
	}
	if u.hosts, err = texts(members, hostMembers...); err != nil {
		return err
	}
	dirs, err := texts(members, dirMembers...)
	if err != nil || len(dirs) > 1 {
		return cmp.Or(err, errors.New("want one directory to run in"))
	}
	u.dir = strings.Join(dirs, "")
	if u.reads {
		return nil
	}
	names := pathMembers
	if strings.Contains(tool, "move") || strings.Contains(tool, "rename") {
		names = append(slices.Clone(names), "source", "src", "from")
	}
	if u.writes, err = texts(members, names...); err != nil {
		return err
	}
	if strings.Contains(tool, "patch") {
		return u.readPatch(members)
	}
	return nil
}

// readCommands reads what is run. Words beside a program's name are its words.
func (u *use) readCommands(members map[string]json.RawMessage) error {
	for _, name := range commandMembers {
		if err := u.readCommand(name, members[name]); err != nil {
			return err
		}
	}
	scripts, err := texts(members, scriptsMember)
	if err != nil {
		return err
	}
	for _, script := range scripts {
		u.commands = append(u.commands, parse(script)...)
	}
	if len(u.commands) == 0 {
		return nil // they belong to something else
	}
	words, err := texts(members, wordMembers...)
	if err != nil {
		return err
	}
	last := &u.commands[len(u.commands)-1]
	for _, w := range words {
		last.words = append(last.words, wordOf(w))
	}
	return nil
}

// readCommand takes a text for a shell, or the words of a program.
func (u *use) readCommand(name string, value json.RawMessage) error {
	if len(value) == 0 || string(value) == "null" {
		return nil
	}
	var argv []string
	if json.Unmarshal(value, &argv) == nil {
		u.commands = append(u.commands, commandsOf(argv)...)
		return nil
	}
	script, err := text(name, value)
	if err == nil {
		u.commands = append(u.commands, parse(script)...)
	}
	return err
}

// patchMarks begin the lines of a patch that name files.
var patchMarks = []string{"*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "}

func (u *use) readPatch(members map[string]json.RawMessage) error {
	found := false
	for _, name := range []string{"input", "patch"} {
		patch, err := text(name, members[name])
		if err != nil {
			return err
		}
		for line := range strings.Lines(patch) {
			for _, mark := range patchMarks {
				if file, ok := strings.CutPrefix(strings.TrimSpace(line), mark); ok {
					u.writes, found = append(u.writes, file), true
				}
			}
		}
	}
	if !found && len(u.writes) == 0 {
		return errors.New("want a patch that names its files")
	}
	return nil
}

// text reads a member that is a text, or absent.
func text(name string, value json.RawMessage) (string, error) {
	if len(value) == 0 || string(value) == "null" {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return "", fmt.Errorf("member %s: want a text", name)
	}
	return s, nil
}

// texts reads members that are a text or a list of them, or absent; empty ones are left
// out.
func texts(members map[string]json.RawMessage, names ...string) (all []string, err error) {
	for _, name := range names {
		var list []string
		if json.Unmarshal(members[name], &list) != nil {
			one, err := text(name, members[name])
			if err != nil {
				return nil, err
			}
			list = []string{one}
		}
		all = append(all, slices.DeleteFunc(list, func(s string) bool { return s == "" })...)
	}
	return all, nil
}
