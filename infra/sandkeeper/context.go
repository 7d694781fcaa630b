package sandkeeper

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// FromContext reads an app's context; what is not given has the default of [Props]. The
// CLI passes context as text, CDK_CONTEXT_JSON as JSON, [ReadChoices] reads a file; any
// will do. A key that is no choice panics, and so fails the synthesis: it may be a choice
// that is misspelt. docs/deploy.md lists the choices; beside them are dist (directory with
// <function>/bootstrap), bundle (directory for zips beside a plain template) and local=true
// (the variant for an engine on loopback), which the Makefile gives.
func FromContext(app awscdk.App) Props {
	c := reader{app, map[string]bool{}}
	p := c.props().complete()
	c.refuseOthers()
	return p
}

func (c reader) props() Props {
	return Props{
		Install:               c.word("install"),
		Dist:                  c.word("dist"),
		Bundle:                c.word("bundle"),
		SandboxImage:          c.word("sandboxImage"),
		Mode:                  c.word("mode"),
		OnFailure:             c.word("onCheckpointFailure"),
		Leaks:                 c.word("leaks"),
		EventBus:              c.word("eventBus"),
		Tenants:               c.text("tenants"),
		CheckpointConcurrency: c.text("checkpointConcurrency"),
		ToolsConcurrency:      c.text("toolsConcurrency"),
		HostFunctions:         c.word("hostFunctions"),
		SecretARNs:            c.word("secretArns"),
		SandboxesPerTenant:    c.text("sandboxesPerTenant"),
		KeepCheckpoints:       c.text("keepCheckpoints"),
		ThreadRetention:       c.text("threadRetention"),
		VPC:                   c.word("vpc"),
		Subnets:               c.list("subnets"),
		SecurityGroup:         c.word("securityGroup"),
		Cluster:               c.word("cluster"),
		TaskFamilies:          c.list("taskFamilies"),
		TaskRoles:             c.list("taskRoles"),
		TaskTags:              c.pairs("taskTags"),
		Spokes:                c.spokes(),
		ScheduleMinutes:       c.whole("scheduleMinutes"),
		Limits:                c.limits(),
		Key:                   c.word("key"),
		PermissionsBoundary:   c.word("permissionsBoundary"),
		LogDays:               c.whole("logDays"),
		InfrequentLogs:        c.either("logClass", "standard", "infrequent"),
		Tracing:               c.yes("tracing", false),
		Destroy:               c.either("removal", "retain", "destroy"),
		Tags:                  c.pairs("tags"),
		NoMonitoring:          !c.yes("monitoring", true),
		AlarmTopic:            c.word("alarmTopic"),
		IdleBurnUSD:           c.number("idleBurnUSD"),
		Runbook:               c.word("runbook"),
		Local:                 c.yes("local", false),
	}
}

// ChoicesVariable names the file of choices for the app in infra.
const ChoicesVariable = "SANDKEEPER_CHOICES"

// ReadChoices reads a file of choices, a JSON object with the keys of docs/deploy.md. A
// value is text, a number, true or false; a list and an object of texts stand for what is
// between commas, and what is JSON itself, as tenants, may stand there as it is. No file,
// "", is no choice.
func ReadChoices(file string) (map[string]any, error) {
	choices := map[string]any{}
	if file == "" {
		return choices, nil
	}
	given, err := readObject(file)
	if err != nil {
		return nil, fmt.Errorf("read choices %s: %w", file, err)
	}
	for key, value := range given {
		text, err := choice(key, value)
		if err != nil {
			return nil, fmt.Errorf("read choices %s: %s: %w", file, key, err)
		}
		choices[key] = text
	}
	return choices, nil
}

// SpokeVariable names the file of a spoke's choices for the app in infra.
const SpokeVariable = "SANDKEEPER_SPOKE"

// ReadSpoke reads a file of a spoke's choices, the JSON of [SpokeProps], as the context
// that [SpokeFromContext] reads. No file, "", is no spoke.
func ReadSpoke(file string) (map[string]any, error) {
	if file == "" {
		return map[string]any{}, nil
	}
	given, err := readObject(file)
	if err != nil {
		return nil, fmt.Errorf("read spoke %s: %w", file, err)
	}
	return map[string]any{"spoke": given}, nil
}

// readObject reads a file that holds one JSON object, in which nothing is said twice.
func readObject(file string) (map[string]any, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var given map[string]any
	if err := json.Unmarshal(data, &given); err != nil || given == nil {
		return nil, fmt.Errorf("want a JSON object of choices, see docs/deploy.md: %w", cmp.Or(err, errors.New("it is null")))
	}
	return given, saidOnce(json.NewDecoder(bytes.NewReader(data)))
}

// saidOnce errs for a value with an object that has a key twice: which of the two was
// meant is for whoever wrote it to say.
func saidOnce(d *json.Decoder) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	keys := map[string]bool{}
	for token == json.Delim('{') || token == json.Delim('[') {
		if !d.More() {
			_, err = d.Token()
			return err
		}
		if token == json.Delim('{') {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name := fmt.Sprint(key)
			if keys[name] {
				return fmt.Errorf("%s: it is there twice", name)
			}
			keys[name] = true
		}
		if err := saidOnce(d); err != nil {
			return err
		}
	}
	return nil
}

// choice is one value as text. What is no choice is left for [FromContext] to refuse.
func choice(key string, value any) (any, error) {
	if key == "dist" || key == "bundle" || key == "local" {
		return nil, errors.New("the Makefile gives it")
	}
	if value != nil && (key == "tenants" || key == "spokes" || key == "spoke") {
		return jsonText(value), nil
	}
	switch v := value.(type) {
	case string, float64, bool:
		return v, nil
	case []any:
		return joined(v)
	case map[string]any:
		return paired(v)
	}
	return nil, errors.New("want text, a number, true, false, a list or an object of texts, got null")
}

// paired is an object of texts as key=value between commas.
func paired(object map[string]any) (any, error) {
	var pairs []any
	for _, name := range slices.Sorted(maps.Keys(object)) {
		text, ok := object[name].(string)
		if !ok {
			return nil, fmt.Errorf("want a text for %s, got %v", name, object[name])
		}
		if strings.Contains(name, "=") {
			return nil, fmt.Errorf("want names without =, got %s", name)
		}
		pairs = append(pairs, name+"="+text)
	}
	return joined(pairs)
}

func joined(list []any) (any, error) {
	texts := make([]string, len(list))
	for i, element := range list {
		text, ok := element.(string)
		if !ok || strings.Contains(text, ",") {
			return nil, fmt.Errorf("want texts without commas, got %v", element)
		}
		texts[i] = text
	}
	return strings.Join(texts, ","), nil
}

// reader reads an app's context. What is there and is not as expected panics.
type reader struct {
	app  awscdk.App
	keys map[string]bool // that have been asked for
}

// refuseOthers panics for a key that nobody asked for. CDK's own have other characters.
func (c reader) refuseOthers() {
	given, _ := c.app.Node().GetAllContext(nil).(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if plainKey.MatchString(key) && !c.keys[key] {
			panic(fmt.Errorf("context %s: no such choice: want one of %s", key, strings.Join(slices.Sorted(maps.Keys(c.keys)), ", ")))
		}
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z]+$`)

// text renders whatever the context has, so that what is neither text nor number is
// refused where it is used rather than overlooked; empty if there is nothing.
func (c reader) text(key string) string {
	c.keys[key] = true
	switch v := c.app.Node().TryGetContext(&key).(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return fmt.Sprint(v)
	}
}

// word is what has to be text: a number or a truth there is a slip, and would else be a name.
func (c reader) word(key string) string {
	v := c.app.Node().TryGetContext(&key)
	if _, text := v.(string); v != nil && !text {
		panic(fmt.Errorf("context %s: want text, got %v", key, v))
	}
	return c.text(key)
}

func (c reader) yes(key string, otherwise bool) bool {
	text := c.text(key)
	if text == "" {
		return otherwise
	}
	yes, err := strconv.ParseBool(text)
	if err != nil {
		panic(fmt.Errorf("context %s: want true or false, got %q", key, text))
	}
	return yes
}

// number is a number from 0 on; 0 if there is nothing.
func (c reader) number(key string) float64 {
	text := c.text(key)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || n > 1e12 {
		panic(fmt.Errorf("context %s: want a number above 0, got %q", key, text))
	}
	return n
}

// whole is a whole number of at least 1; 0 if there is nothing.
func (c reader) whole(key string) int {
	text := c.text(key)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		panic(fmt.Errorf("context %s: want a whole number of at least 1, got %q", key, text))
	}
	return int(n)
}

// either reports whether the second of two words is there.
func (c reader) either(key, first, second string) bool {
	text := c.text(key)
	if text != "" && text != first && text != second {
		panic(fmt.Errorf("context %s: want %s or %s, got %q", key, first, second, text))
	}
	return text == second
}

// list is what stands between commas.
func (c reader) list(key string) []string {
	var out []string
	for part := range strings.SplitSeq(c.text(key), ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// pairs are key=value between commas.
func (c reader) pairs(key string) map[string]string {
	out := map[string]string{}
	for _, part := range c.list(key) {
		name, value, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			panic(fmt.Errorf("context %s: want key=value between commas, got %q", key, part))
		}
		if _, twice := out[name]; twice {
			panic(fmt.Errorf("context %s: want each key once, got %q twice", key, name))
		}
		out[name] = value
	}
	return out
}

// json reads a context that is JSON, and reports whether there is one.
func (c reader) json(key string, into any) bool {
	c.keys[key] = true
	v := c.app.Node().TryGetContext(&key)
	if v == nil || v == "" {
		return false
	}
	if err := core.DecodeStrict([]byte(jsonText(v)), into); err != nil {
		panic(fmt.Errorf("context %s: %w", key, err))
	}
	return true
}

// spokes are those that are there.
func (c reader) spokes() []core.Spoke {
	var out []core.Spoke
	c.json("spokes", &out)
	return out
}

// limits are those that are there.
func (c reader) limits() map[string]any {
	out := map[string]any{}
	for _, name := range []string{"runTTL", "pauseTTL", "idleTTL", "retention", "checkpointHold", "breakerWindow", "expiringBefore"} {
		if text := c.text(name); text != "" {
			out[name] = text
		}
	}
	if n := c.whole("breakerMost"); n != 0 {
		out["breakerMost"] = n
	}
	for _, name := range []string{"runSpendCap", "tenantSpendCap"} {
		if usd := c.number(name); usd != 0 {
			out[name] = usd
		}
	}
	return out
}
