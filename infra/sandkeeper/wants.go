package sandkeeper

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// want is how the text of a choice must look. What an app of its own computes at the
// deploy, a token, looks like nothing yet and is taken.
type want struct {
	shape *regexp.Regexp
	words string
}

// Shapes of choices. None has a wildcard: one that reaches a role is a grant on more than
// is listed.
var (
	wantVPC      = want{regexp.MustCompile(`^vpc-[0-9a-z]+$`), "the id of a VPC, as vpc-0abc"}
	wantSubnet   = want{regexp.MustCompile(`^subnet-[0-9a-z]+$`), "ids of subnets, as subnet-0abc"}
	wantGroup    = want{regexp.MustCompile(`^sg-[0-9a-z]+$`), "the id of a security group, as sg-0abc"}
	wantCluster  = want{regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`), "the name of a cluster, no ARN"}
	wantFamily   = want{regexp.MustCompile(`^[A-Za-z0-9_-]{1,255}$`), "names of families, no ARNs"}
	wantRole     = want{regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,512}$`), "ARNs of roles"}
	wantBoundary = want{regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/[A-Za-z0-9+=,.@_/-]{1,512}$`), "the ARN of a managed policy"}
	wantTopic    = want{regexp.MustCompile(`^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$`), "the ARN of an SNS topic"}
	wantAddress  = want{regexp.MustCompile(`^[!-~]{1,512}$`), "an address without spaces"}
	wantImage    = want{regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$`), "an image, as registry/name:tag"}
	wantMode     = want{oneOf(names.Values[names.Mode]), strings.Join(names.Values[names.Mode], " or ")}
	wantFailure  = want{oneOf(names.Values[names.OnFailure]), strings.Join(names.Values[names.OnFailure], " or ")}
	wantLeaks    = want{oneOf(names.Values[names.Leaks]), strings.Join(names.Values[names.Leaks], " or ")}
	wantTagName  = want{regexp.MustCompile(`^[\pL\pZ\pN_.:/+@-]{1,128}$`), "names of tags, at most 128 characters, not aws:…"}
	wantTagValue = want{regexp.MustCompile(`^[\pL\pZ\pN_.:/=+@-]{0,256}$`), "values of tags, at most 256 characters"}
)

func oneOf(words []string) *regexp.Regexp {
	return regexp.MustCompile(`^(` + strings.Join(words, "|") + `)$`)
}

// of says what is wrong with the values of a choice; what is empty is not chosen.
func (w want) of(choice string, values ...string) error {
	for _, v := range values {
		if v != "" && !*awscdk.Token_IsUnresolved(v) && !w.shape.MatchString(v) {
			return fmt.Errorf("%s: want %s, got %.120q", choice, w.words, v)
		}
	}
	return nil
}

// tags says what is wrong with tags: AWS keeps names that begin with aws: for itself.
func tags(choice string, given map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if name == "" || strings.HasPrefix(strings.ToLower(name), "aws:") {
			return fmt.Errorf("%s: want %s, got %q", choice, wantTagName.words, name)
		}
		if err := wantTagName.of(choice, name); err != nil {
			return err
		}
		if err := wantTagValue.of(choice+": "+name, given[name]); err != nil {
			return err
		}
	}
	return nil
}

// misshapen says which of the texts looks like nothing of its kind.
func (p Props) misshapen() error {
	return cmp.Or(
		wantMode.of("mode", p.Mode),
		wantFailure.of("onCheckpointFailure", p.OnFailure),
		wantLeaks.of("leaks", p.Leaks),
		want{busName, "the name of a bus"}.of("eventBus", p.EventBus),
		wantVPC.of("vpc", p.VPC),
		wantSubnet.of("subnets", p.Subnets...),
		wantGroup.of("securityGroup", p.SecurityGroup),
		wantCluster.of("cluster", p.Cluster),
		wantFamily.of("taskFamilies", p.TaskFamilies...),
		wantRole.of("taskRoles", p.TaskRoles...),
		wantImage.of("sandboxImage", p.SandboxImage),
		wantBoundary.of("permissionsBoundary", p.PermissionsBoundary),
		wantTopic.of("alarmTopic", p.AlarmTopic),
		wantAddress.of("runbook", p.Runbook),
		tags("tags", p.Tags),
		tags("taskTags", p.TaskTags),
	)
}

// mostInstallWithSpokes leaves room in the id of a statement, 64 characters, for who it is
// about.
const mostInstallWithSpokes = 64 - len("-spoke-") - len("111122223333")

// check refuses choices that cannot be, or that do not go together. It panics, and so
// fails the synthesis, before anything is made.
func (p Props) check() {
	for _, c := range []struct {
		holds bool
		what  string
	}{
		{installName.MatchString(p.Install) && len(p.Install) <= mostInstall, fmt.Sprintf("install: want letters, digits and hyphens, a letter first, at most %d, got %q", mostInstall, p.Install)},
		{len(p.Spokes) == 0 || len(p.Install) <= mostInstallWithSpokes, fmt.Sprintf("install: want at most %d characters with spokes, got %d", mostInstallWithSpokes, len(p.Install))},
		{p.ScheduleMinutes <= mostMinutes, fmt.Sprintf("scheduleMinutes: want at most %d, got %d", mostMinutes, p.ScheduleMinutes)},
		{(p.VPC == "") == (len(p.Subnets) == 0), "vpc and subnets: want both or neither"},
		{p.SecurityGroup == "" || p.VPC != "", "securityGroup: want vpc and subnets with it"},
		{!p.InfrequentLogs || p.NoMonitoring, "logClass: CloudWatch makes no metrics from infrequent logs: want monitoring=false with it"},
		{len(p.TaskRoles) == 0 || len(p.TaskFamilies) > 0, "taskRoles: want taskFamilies with them"},
		{p.AlarmTopic == "" || p.Runbook != runbook, "alarmTopic: want runbook with it, the address at which those who are rung up find docs/runbook.md"},
	} {
		if !c.holds {
			panic(fmt.Errorf("context %s", c.what))
		}
	}
	if err := p.misshapen(); err != nil {
		panic(fmt.Errorf("context %w", err))
	}
}

// roleNameKept is how long a stack's name may be so that CloudFormation keeps it whole in
// the names of roles, 64 characters with a logical id and a suffix.
const roleNameKept = 24

// mostSpokeInstall leaves room in the name of a spoke's role for the longest Region.
const mostSpokeInstall = 64 - len("-spoke-ap-southeast-1")

var wantRoleName = want{regexp.MustCompile(`^[A-Za-z0-9+=,.@_-]{1,64}$`), "the name of a role, at most 64 characters, no ARN"}

// complete fills in the installation's name, and says where the installation is. It panics,
// and so fails the synthesis, for choices that cannot be.
func (p SpokeProps) complete() (SpokeProps, hub) {
	p.Install = cmp.Or(p.Install, names.Stack)
	parts := hubARN.FindStringSubmatch(p.Hub)
	if parts == nil {
		panic(fmt.Errorf("spoke hub: want the ARN of the installation's cluster, got %q", p.Hub))
	}
	at := hub{partition: parts[1], region: parts[2], account: parts[3]}
	if err := p.check(at); err != nil {
		panic(fmt.Errorf("spoke %w", err))
	}
	return p, at
}

// check refuses what the functions would refuse to be told of, and what CloudFormation or
// IAM would.
func (p SpokeProps) check(at hub) error {
	sample := core.Spoke{Role: "arn:aws:iam::000000000000:role/r", Region: "us-east-1", ExternalID: p.ExternalID, Clusters: p.Clusters}
	if err := sample.Check(); err != nil {
		return err
	}
	switch {
	case !installName.MatchString(p.Install) || len(p.Install) > mostInstall:
		return fmt.Errorf("install: want letters, digits and hyphens, a letter first, at most %d, got %q", mostInstall, p.Install)
	case p.RoleName == "" && len(p.Install) > mostSpokeInstall:
		return fmt.Errorf("roleName: want one, as of an installation whose name has %d characters the default would be too long", len(p.Install))
	case len(p.TaskRoles) > 0 && len(p.TaskFamilies) == 0:
		return errors.New("taskRoles: want taskFamilies with them")
	}
	return cmp.Or(
		wantRoleName.of("roleName", p.RoleName),
		wantFamily.of("taskFamilies", p.TaskFamilies...),
		wantRole.of("taskRoles", p.TaskRoles...),
		wantBoundary.of("permissionsBoundary", p.PermissionsBoundary),
		tags("tags", p.Tags),
		tags("taskTags", p.TaskTags),
		p.checkCallers(at),
	)
}

// checkCallers wants patterns of roles of the installation's own account, that name more
// than "any role", and one for each function where CloudFormation shortens the names of
// roles.
func (p SpokeProps) checkCallers(at hub) error {
	shape := want{
		regexp.MustCompile(`^arn:` + at.partition + `:iam::` + at.account + `:role/[A-Za-z0-9+=,.@_/-]+[A-Za-z0-9+=,.@_/*?-]*$`),
		"patterns of ARNs as arn:" + at.partition + ":iam::" + at.account + ":role/name-*",
	}
	for _, caller := range slices.Sorted(maps.Keys(p.Callers)) {
		if !slices.Contains(abroad, caller) {
			return fmt.Errorf("callers: want some of %s, got %q", strings.Join(abroad, ", "), caller)
		}
		if err := shape.of("callers: "+caller, p.Callers[caller]...); err != nil || slices.Contains(p.Callers[caller], "") {
			return cmp.Or(err, fmt.Errorf("callers: %s: want %s, got an empty one", caller, shape.words))
		}
	}
	for _, caller := range abroad {
		if caller != names.Operator && len(p.Callers[caller]) == 0 && len(p.Install) > roleNameKept {
			return fmt.Errorf("callers: want patterns for %s, as CloudFormation shortens the names of roles in a stack whose name has %d characters", caller, len(p.Install))
		}
	}
	return nil
}
