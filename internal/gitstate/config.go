package gitstate

import (
	"net/url"
	"regexp"
	"strings"
)

// settings are the keys that are stored: what changes how git sees files, branches
// and remotes, and starts no program. A star stands for a subsection.
var settings = map[string]func(string) bool{
	"core.filemode": word, "core.symlinks": word, "core.ignorecase": word, "core.precomposeunicode": word,
	"core.autocrlf": word, "core.eol": word, "core.safecrlf": word, "core.whitespace": line, "core.quotepath": word,
	"core.excludesfile": line, "core.attributesfile": line, "core.sparsecheckout": word, "core.sparsecheckoutcone": word,
	"core.logallrefupdates": word, "core.abbrev": word, "core.checkroundtripencoding": line, "core.commentchar": line,
	"branch.*.remote": remoteName, "branch.*.pushremote": remoteName, "branch.*.merge": validRef, "branch.*.rebase": word,
	"branch.*.description": text, "branch.autosetupmerge": word, "branch.autosetuprebase": word,
	"remote.*.url": line, "remote.*.pushurl": line, "remote.*.fetch": line, "remote.*.push": line, "remote.*.tagopt": line,
	"remote.*.prune": word, "remote.*.mirror": word, "remote.*.skipfetchall": word, "remote.pushdefault": remoteName,
	"submodule.*.url": line, "submodule.*.active": word, "submodule.*.branch": line, "submodule.*.update": submoduleUpdate,
	"submodule.*.ignore": word, "submodule.active": line, "submodule.recurse": word,
	"user.name": line, "user.email": line,
	"pull.rebase": word, "pull.ff": word, "push.default": word, "push.autosetupremote": word, "push.followtags": word,
	"fetch.prune": word, "fetch.prunetags": word, "merge.ff": word, "merge.conflictstyle": word, "merge.renames": word,
	"rebase.autostash": word, "rebase.autosquash": word, "rebase.updaterefs": word, "rerere.enabled": word,
	"diff.renames": word, "diff.algorithm": word, "diff.ignoresubmodules": word, "diff.noprefix": word, "diff.mnemonicprefix": word,
	"status.showuntrackedfiles": word, "status.submodulesummary": word, "status.relativepaths": word, "status.renames": word,
	"i18n.commitencoding": word, "i18n.logoutputencoding": word, "gc.auto": word, "init.defaultbranch": line,
}

var (
	wordOK   = regexp.MustCompile(`^[0-9A-Za-z.-]*$`)
	remoteOK = regexp.MustCompile(`^[0-9A-Za-z._][0-9A-Za-z._/+-]*$`)
	control  = regexp.MustCompile(`[\x00-\x1f\x7f]`)
)

func word(value string) bool { return wordOK.MatchString(value) }
func line(value string) bool { return len(value) < 4096 && !control.MatchString(value) }
func text(value string) bool { return len(value) < 1<<16 && !strings.ContainsRune(value, 0) }
func remoteName(value string) bool {
	return remoteOK.MatchString(value) && !strings.Contains(value, "..")
}

func submoduleUpdate(value string) bool {
	return value == "checkout" || value == "rebase" || value == "merge" || value == "none"
}

// settingName is key with its subsection replaced by a star. Git writes section and
// name in lower case.
func settingName(key string) (name, sub string, has bool) {
	first, last := strings.IndexByte(key, '.'), strings.LastIndexByte(key, '.')
	if first < 0 || first == last {
		return key, "", false
	}
	return key[:first] + ".*" + key[last:], key[first+1 : last], true
}

// cleanSetting gives the value to store of a setting, or the reason why it is left
// out; "" with neither says nothing of a setting that nobody misses.
func cleanSetting(key, value string) (clean, reason string) {
	name, sub, has := settingName(key)
	ok, known := settings[name]
	if !known {
		return "", NotStored
	}
	if !ok(value) || has && (sub == "" || control.MatchString(sub) || len(sub) > 1024) {
		return "", NotPlain
	}
	switch name {
	case "remote.*.url", "remote.*.pushurl", "submodule.*.url":
		clean, ok := cleanURL(value)
		if !ok {
			return "", Executes
		}
		return clean, ""
	case "remote.*.fetch", "remote.*.push", "submodule.*.branch":
		if strings.HasPrefix(value, "-") {
			return "", NotPlain
		}
	}
	return value, ""
}

var (
	scpLike  = regexp.MustCompile(`^(?:([^@/]+)@)?([0-9A-Za-z.-]+):(.*)$`)
	scheme   = regexp.MustCompile(`^[A-Za-z][0-9A-Za-z+.-]*://`)
	loginOK  = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	networks = map[string]bool{"https": true, "http": true, "ssh": true, "git": true, "git+ssh": true, "ssh+git": true, "ftp": true, "ftps": true}
)

// cleanURL takes credentials out of a remote's URL, and refuses what starts a helper
// program or an option. The login of ssh, which is no secret, stays.
func cleanURL(raw string) (clean string, ok bool) {
	if raw == "" || raw[0] == '-' || strings.Contains(raw, "::") {
		return "", false
	}
	if !scheme.MatchString(raw) {
		if m := scpLike.FindStringSubmatch(raw); m != nil && !strings.HasPrefix(m[2], "-") && m[1] != "" {
			return cleanSCP(m), loginOK.MatchString(m[1]) || strings.Contains(m[1], ":")
		}
		return raw, true
	}
	u, err := url.Parse(raw)
	if err != nil || !networks[u.Scheme] && u.Scheme != "file" {
		return "", false
	}
	if strings.HasPrefix(u.Host, "-") {
		return "", false
	}
	login := u.User.Username()
	u.User = nil
	if (u.Scheme == "ssh" || u.Scheme == "git+ssh" || u.Scheme == "ssh+git") && loginOK.MatchString(login) && login[0] != '-' {
		u.User = url.User(login)
	}
	u.RawQuery, u.Fragment, u.ForceQuery = "", "", false
	return u.String(), true
}

func cleanSCP(m []string) string {
	login, _, _ := strings.Cut(m[1], ":")
	return login + "@" + m[2] + ":" + m[3]
}

// leadsOut tells whether a remote is somewhere else than in the sandbox, which its
// data do not outlive.
func leadsOut(raw string) bool {
	if scheme.MatchString(raw) {
		return !strings.HasPrefix(strings.ToLower(raw), "file:")
	}
	colon, slash := strings.IndexByte(raw, ':'), strings.IndexByte(raw, '/')
	return colon > 0 && (slash < 0 || colon < slash)
}

// parseSettings reads the output of git config --list -z. A name without a value is
// a true.
func parseSettings(out string) []Setting {
	var all []Setting
	for entry := range strings.SplitSeq(out, "\x00") {
		if entry == "" {
			continue
		}
		key, value, found := strings.Cut(entry, "\n")
		if !found {
			value = "true"
		}
		all = append(all, Setting{Key: key, Value: value})
	}
	return all
}

// formatSettings writes settings as a configuration file.
func formatSettings(all []Setting) string {
	var b strings.Builder
	head := ""
	for _, s := range all {
		first, last := strings.IndexByte(s.Key, '.'), strings.LastIndexByte(s.Key, '.')
		if first < 0 {
			continue
		}
		section := "[" + s.Key[:first] + "]"
		if first != last {
			section = "[" + s.Key[:first] + ` "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s.Key[first+1:last]) + `"]`
		}
		if section != head {
			b.WriteString(section + "\n")
			head = section
		}
		b.WriteString("\t" + s.Key[last+1:] + ` = "` + quoteValue(s.Value) + "\"\n")
	}
	return b.String()
}

func quoteValue(value string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`, "\b", `\b`).Replace(value)
}
