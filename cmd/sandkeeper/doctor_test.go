package main

import (
	"strings"
	"testing"

	ecstypes "github.com/aws/aws-sdk-go-v2/service/ecs/types"
)

// TestDoctorKnowsWhoIsKilledBeforeItsNoticeIsOver by the stop timeout, which is 30 s where
// a definition has none; a container that may go alone holds nothing that is to be saved.
func TestDoctorKnowsWhoIsKilledBeforeItsNoticeIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		container ecstypes.ContainerDefinition
		want      string
	}{
		"the longest":      {ecstypes.ContainerDefinition{StopTimeout: new(int32(120))}, ""},
		"shorter":          {ecstypes.ContainerDefinition{StopTimeout: new(int32(119))}, "killed 119 s after a notice"},
		"none":             {ecstypes.ContainerDefinition{Essential: new(true)}, "killed 30 s after a notice"},
		"none, and may go": {ecstypes.ContainerDefinition{Essential: new(false)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(hastyIn(&ecstypes.TaskDefinition{ContainerDefinitions: []ecstypes.ContainerDefinition{c.container}}), "\n")
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
