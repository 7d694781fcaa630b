package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	dynamotypes "github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/ecs"
	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	ssmtypes "github.com/aws/aws-sdk-go-v2/service/ssm/types"
	"github.com/klauspost/compress/zstd"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// leak is a value that must not be where it was found.
type leak struct{ what, where string }

// seeker looks for secrets in what an installation keeps, says and runs.
type seeker struct {
	values   map[string]string         // by name
	patterns map[string]*regexp.Regexp // of what is minted while it looks

	mu    sync.Mutex
	found []leak
	own   map[string]bool // what an agent's own processes had in their environment
	looks int
}

// in looks for every text form of a value.
func (s *seeker) in(where string, data []byte) {
	for name, value := range s.values {
		for form, text := range map[string]string{
			"": value, " in base64": base64.StdEncoding.EncodeToString([]byte(value)), " in JSON's base64 of a line": base64.StdEncoding.EncodeToString([]byte(value + "\n")),
		} {
			if bytes.Contains(data, []byte(strings.TrimRight(text, "="))) {
				s.tell(name+form, where)
			}
		}
	}
	for name, pattern := range s.patterns {
		if pattern.Match(data) {
			s.tell(name, where)
		}
	}
}

func (s *seeker) tell(what, where string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := (leak{what, where}); !slices.Contains(s.found, l) {
		s.found = append(s.found, l)
	}
}

// take returns what was found, and forgets it.
func (s *seeker) take() []leak {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.found
	s.found = nil
	return found
}

// processes looks at the words and the environment of every process of this machine, those
// of the engine, its functions and all tasks among them. The agent's own processes may have
// the values in their environment, and who clones has what it clones with.
func (s *seeker) processes() {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		words, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // it has ended
		}
		told := strings.ReplaceAll(string(words[:min(len(words), 100)]), "\x00", " ")
		s.in("the words of "+told, words)
		environment, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil {
			continue
		}
		which := &seeker{values: s.values, patterns: s.patterns}
		which.in("the environment of "+told, environment)
		for _, l := range which.found {
			switch {
			case bytes.Contains(environment, []byte(asOwner+"=")) && !strings.HasPrefix(told, core.AgentName):
				s.mu.Lock()
				s.own[l.what] = true
				s.mu.Unlock()
			case l.what == "clone credential" && strings.HasPrefix(told, "git"), l.what == "clone credential" && strings.Contains(told, "/git"):
			default:
				s.tell(l.what, l.where)
			}
		}
	}
	s.mu.Lock()
	s.looks++
	s.mu.Unlock()
}

// asOwner marks the environment of the processes that the agent of the test begins.
const asOwner = core.MCPTokenVariable

// watch looks at processes again and again until the end of ctx.
func (s *seeker) watch(ctx context.Context) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(waitStep)
		defer tick.Stop()
		for ctx.Err() == nil {
			s.processes()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return done
}

// stored looks at every item of every table, and at every version of every object, as it is
// and decompressed.
func (s *seeker) stored(t *testing.T, in *installation) {
	t.Helper()
	for _, output := range []names.Output{names.OutRunsTable, names.OutSandboxesTable, names.OutCheckpoints} {
		pages := dynamodb.NewScanPaginator(in.db, &dynamodb.ScanInput{TableName: new(in.out[output]), ConsistentRead: new(true)})
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range page.Items {
				s.in("table "+string(output), spelled(it))
			}
		}
	}
	objects := s3.NewFromConfig(in.engine.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	bucket := in.out[names.OutBucket]
	pages := s3.NewListObjectVersionsPaginator(objects, &s3.ListObjectVersionsInput{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Versions {
			out, err := objects.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: v.Key, VersionId: v.VersionId})
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(out.Body)
			out.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			s.in("object "+*v.Key, append([]byte(*v.Key+"\n"), data...))
			s.in("object "+*v.Key+", decompressed", decompressed(data))
		}
	}
}

// spelled is an item with its bytes as they are, and not as base64.
func spelled(it item) []byte {
	var b bytes.Buffer
	for name, value := range it {
		b.WriteString(name + "\n")
		if v, ok := value.(*dynamotypes.AttributeValueMemberB); ok {
			b.Write(v.Value)
		}
		fmt.Fprintf(&b, "\n%v\n", plain(value))
	}
	return b.Bytes()
}

// plain is an attribute's value, lists and maps in it included.
func plain(value dynamotypes.AttributeValue) any {
	switch v := value.(type) {
	case *dynamotypes.AttributeValueMemberS:
		return v.Value
	case *dynamotypes.AttributeValueMemberM:
		return string(spelled(v.Value))
	case *dynamotypes.AttributeValueMemberL:
		all := make([]any, len(v.Value))
		for i, e := range v.Value {
			all[i] = plain(e)
		}
		return all
	}
	return value
}

// decompressed is what every zstd frame in data holds; frames that are none end it.
func decompressed(data []byte) []byte {
	var all []byte
	for {
		_, rest, ok := bytes.Cut(data, []byte{0x28, 0xb5, 0x2f, 0xfd})
		if !ok {
			return all
		}
		decoder, err := zstd.NewReader(io.MultiReader(bytes.NewReader([]byte{0x28, 0xb5, 0x2f, 0xfd}), bytes.NewReader(rest)), zstd.WithDecoderConcurrency(1))
		if err == nil {
			frames, _ := io.ReadAll(decoder) // up to what is no frame
			all = append(all, frames...)
			decoder.Close()
		}
		data = rest
	}
}

// said looks at what engine and functions have logged and left on the disk, and at the
// messages that wait in a queue.
func (s *seeker) said(t *testing.T, in *installation, queues ...names.Output) {
	t.Helper()
	err := filepath.WalkDir(in.engine.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // what the engine takes away meanwhile
		}
		data, err := os.ReadFile(path)
		if err == nil {
			s.in("file "+filepath.Base(path)+" of the engine", data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range queues {
		out, err := in.queues.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: new(in.out[queue]), MaxNumberOfMessages: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Messages {
			s.in("queue "+string(queue), []byte(*m.Body))
			_, err := in.queues.ChangeMessageVisibility(t.Context(), &sqs.ChangeMessageVisibilityInput{QueueUrl: new(in.out[queue]), ReceiptHandle: m.ReceiptHandle})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// kept looks at what Sandkeeper leaves in a task's file system beside the workspace.
func (s *seeker) kept(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // it is gone, or no file
		}
		data, err := os.ReadFile(path)
		if err == nil && entry.Name() != "mcp.json" { // the agent's own, to its user alone
			s.in("file "+entry.Name()+" in the sandbox", data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// guarded is a repository that a real git server gives, by https, to who knows the password.
func guarded(t *testing.T, in *installation, password string) (url, certificate string) {
	t.Helper()
	author := t.TempDir()
	gitIn(t, author, "init", "-q", "-b", "main")
	commit(t, author, "one")
	root := t.TempDir()
	gitIn(t, author, "clone", "-q", "--bare", author, filepath.Join(root, "origin.git"))
	backend := &cgi.Handler{
		Path: filepath.Join(gitIn(t, author, "--exec-path"), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, ok := r.BasicAuth(); !ok || got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			http.Error(w, "who are you", http.StatusUnauthorized)
			return
		}
		r.Header.Del("Authorization") // CGI would put it into an environment
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	certificate = filepath.Join(in.dir, rand.Text()+".pem")
	encoded := "-----BEGIN CERTIFICATE-----\n" + base64.StdEncoding.EncodeToString(server.Certificate().Raw) + "\n-----END CERTIFICATE-----\n"
	if err := os.WriteFile(certificate, []byte(encoded), 0o644); err != nil {
		t.Fatal(err)
	}
	return server.URL + "/origin.git", certificate
}

// secrets keeps values where AWS keeps them, and returns where.
func (in *installation) secrets(t *testing.T, values map[string]string) map[string]string {
	t.Helper()
	cfg, arns := in.engine.Config(), map[string]string{}
	for name, value := range values {
		id := "e2e/" + rand.Text()
		if name == "PARAMETER" {
			client := ssm.NewFromConfig(cfg)
			_, err := client.PutParameter(t.Context(), &ssm.PutParameterInput{Name: new("/" + id), Value: &value, Type: ssmtypes.ParameterTypeSecureString})
			if err != nil {
				t.Fatal(err)
			}
			arns[name] = "arn:aws:ssm:us-east-1:000000000000:parameter/" + id
			continue
		}
		out, err := secretsmanager.NewFromConfig(cfg).CreateSecret(t.Context(), &secretsmanager.CreateSecretInput{Name: &id, SecretString: &value})
		if err != nil {
			t.Fatal(err)
		}
		arns[name] = *out.ARN
	}
	return arns
}

// taskWith is the sample task definition with variables of its own.
func (in *installation) taskWith(t *testing.T, environment map[string]string) string {
	t.Helper()
	client := in.engine.ECS(in.fargate.URL())
	out, err := client.DescribeTaskDefinition(t.Context(), &ecs.DescribeTaskDefinitionInput{TaskDefinition: new(in.out[names.OutTaskDefinition])})
	if err != nil {
		t.Fatal(err)
	}
	d := out.TaskDefinition
	for name, value := range environment {
		d.ContainerDefinitions[0].Environment = append(d.ContainerDefinitions[0].Environment, ecstypes.KeyValuePair{Name: &name, Value: &value})
	}
	made, err := client.RegisterTaskDefinition(t.Context(), &ecs.RegisterTaskDefinitionInput{
		Family: new(*d.Family + "-" + rand.Text()), ContainerDefinitions: d.ContainerDefinitions, Cpu: d.Cpu, Memory: d.Memory,
		NetworkMode: d.NetworkMode, RequiresCompatibilities: d.RequiresCompatibilities, TaskRoleArn: d.TaskRoleArn,
	})
	if err != nil {
		t.Fatal(err)
	}
	return *made.TaskDefinition.TaskDefinitionArn
}

// TestASecretIsNowhereButInItsAgent: what a definition names, what a clone needs, and what
// is minted for a run and for its captures, is in no item, object, log, message, file, word
// of a process or environment but the agent's own: while a run lives that has the values
// in its workspace and in its repository, and after its checkpoint and its end.
func TestASecretIsNowhereButInItsAgent(t *testing.T) {
	in := installed(t)
	in.needAgent(t)
	run := core.RunID("secrets-" + rand.Text())
	values := map[string]string{"TOKEN": "tok-" + rand.Text(), "PARAMETER": "par-" + rand.Text(), "GIT": "git-" + rand.Text()}
	c := in.caller()
	s := &seeker{
		values: map[string]string{"secret": values["TOKEN"], "parameter": values["PARAMETER"], "clone credential": values["GIT"]},
		patterns: map[string]*regexp.Regexp{
			"bearer":        regexp.MustCompile(`-\.` + string(run) + `\.[0-9a-f]{48}`),
			"capture token": regexp.MustCompile(`-\.` + string(c.thread) + `\.[0-9]+\.[A-Za-z0-9_-]{32}`),
		},
		own: map[string]bool{},
	}
	repository, certificate := guarded(t, in, values["GIT"])
	arns := in.secrets(t, values)
	spec := in.Spec()
	definition := map[string]any{
		"name": "e2e-secrets", "version": 1, "checkpoint": "finished", "destroyOnComplete": true, "fileEvents": map[string]any{"enabled": true},
		"task": map[string]any{
			"taskDefinition": in.taskWith(t, map[string]string{"GIT_SSL_CAINFO": certificate}), "container": spec.Container, "subnets": spec.Subnets, "assignPublicIp": true,
		},
		"policy":    map[string]any{"commands": map[string]any{"deny": []string{"rm"}}}, // so that the agent has a server of tools
		"secrets":   []any{map[string]any{"name": "TOKEN", "from": arns["TOKEN"]}, map[string]any{"name": "PARAMETER", "from": arns["PARAMETER"]}, map[string]any{"name": "GIT", "from": arns["GIT"]}},
		"workspace": map[string]any{"source": map[string]any{"repository": repository, "credential": "GIT"}},
	}
	watching, stop := context.WithCancel(t.Context())
	done := s.watch(watching)
	t.Cleanup(stop)
	shell, say := in.inParts(t, []byte("begun\n"))
	seen := "seen-" + rand.Text() // which is no secret, and stored with the workspace
	// What it writes has the values in it; what it prints has not.
	begun := c.start(t, run, `cat one; test -n "$GIT" && echo "$TOKEN" >leak && (echo `+seen+`; echo "$PARAMETER"; echo after) >second
git add second && git -c user.name=a -c user.email=a@example.com commit -q -m unpushed; sleep 1; `+shell, map[string]any{"definition": definition})
	say()
	if got := c.follow(t, run, 0, len("one\nbegun\n")); !strings.HasPrefix("one\nbegun\n", strings.TrimSpace(string(got))) || len(got) == 0 {
		t.Fatalf("the agent wrote %q", got)
	}
	var left core.RenewReport
	c.must(t, "detach", map[string]any{"run": run, "host": c.host}, &left)
	task, err := in.fargate.Task(begun.Run.TaskARN)
	if err != nil {
		t.Fatal(err)
	}
	s.kept(t, task.Containers[0].JournalDir)
	in.deliver(t, false) // so that the messages can be read
	say()
	key := core.RunKey{Tenant: "-", Run: run}
	in.sweepUntil(t, "end of "+key.String(), func(core.SweepReport) bool { return in.run(t, key).Status.Terminal() })
	s.said(t, in, names.OutReclaimQueue, names.OutDeadLetterQueue)
	in.deliver(t, true)
	r := in.settle(t, key)
	if r.Checkpoint.State != core.CheckpointDone {
		t.Fatalf("checkpoint %+v", r.Checkpoint)
	}
	stop()
	<-done
	s.values["workspace"] = seen
	s.kept(t, task.Containers[0].JournalDir)
	s.stored(t, in)
	s.said(t, in, names.OutReclaimQueue, names.OutDeadLetterQueue, names.OutEventDead)
	unpacked := 0
	for _, l := range s.take() {
		switch {
		case l.what != "workspace":
			t.Errorf("%s is in %s", l.what, l.where)
		case strings.Contains(l.where, "/packs/"):
			unpacked++
		}
	}
	if unpacked == 0 {
		t.Error("what the agent wrote is in no pack as the scan sees them")
	}
	for _, name := range []string{"secret", "parameter", "clone credential"} {
		if !s.own[name] {
			t.Errorf("in %d looks no process of the agent was seen with the %s", s.looks, name)
		}
	}
	t.Run("what is left somewhere is found", func(t *testing.T) { s.planted(t, in, values["TOKEN"]) })
}

// planted leaves a value in each place that is looked at, one at a time.
func (s *seeker) planted(t *testing.T, in *installation, value string) {
	objects := s3.NewFromConfig(in.engine.Config(), func(o *s3.Options) { o.UsePathStyle = true })
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) string {
		key := "planted/" + rand.Text()
		out, err := objects.PutObject(t.Context(), &s3.PutObjectInput{Bucket: new(in.out[names.OutBucket]), Key: &key, Body: bytes.NewReader(data)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := objects.DeleteObject(contextOf(t), &s3.DeleteObjectInput{Bucket: new(in.out[names.OutBucket]), Key: &key, VersionId: out.VersionId}); err != nil {
				t.Error(err)
			}
		})
		return key
	}
	p := place{in.out[names.OutRunsTable], "planted#" + rand.Text(), "run"}
	it := p.key()
	it["deep"] = &dynamotypes.AttributeValueMemberM{Value: item{"in": &dynamotypes.AttributeValueMemberB{Value: []byte("x" + value)}}}
	if _, err := in.db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &p.table, Item: it}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := in.db.DeleteItem(contextOf(t), &dynamodb.DeleteItemInput{TableName: &p.table, Key: p.key()}); err != nil {
			t.Error(err)
		}
	})
	object, packed := put([]byte("before "+value)), put(append(encoder.EncodeAll([]byte("other"), nil), encoder.EncodeAll(bytes.Repeat([]byte(value), 3), nil)...))
	// The id of a run that is none is logged as it is.
	if _, err := in.invoke(in.out[names.OutSession], []byte(`{"get": {"tenant": "-", "run": `+strconv.Quote(value)+`}}`)); err != nil {
		t.Fatal(err)
	}
	message, _ := json.Marshal(value)
	if _, err := in.queues.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: new(in.out[names.OutDeadLetterQueue]), MessageBody: new(string(message))}); err != nil {
		t.Fatal(err)
	}
	for _, command := range []*exec.Cmd{exec.CommandContext(t.Context(), "sleep", "3600"), exec.CommandContext(t.Context(), "sh", "-c", "sleep 3600; :", value)} {
		if len(command.Args) == 2 {
			command.Env = []string{"PLANTED=" + value, "PATH=" + os.Getenv("PATH")}
		}
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL); _ = command.Wait() })
	}
	s.stored(t, in)
	s.said(t, in, names.OutDeadLetterQueue)
	s.processes()
	in.dead(t)
	found := s.take()
	for _, want := range []string{
		"table " + string(names.OutRunsTable), "object " + object, "object " + packed + ", decompressed", "file engine.log of the engine",
		"queue " + string(names.OutDeadLetterQueue), "the environment of sleep 3600 ", "the words of sh -c sleep 3600; : ",
	} {
		if !slices.ContainsFunc(found, func(l leak) bool { return l.what == "secret" && strings.HasPrefix(l.where, want) }) {
			t.Errorf("what was left in %s is not found among %v", want, found)
		}
	}
}
