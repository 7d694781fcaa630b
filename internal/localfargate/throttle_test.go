package localfargate_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

func TestLimitsAreThoseOfTheReference(t *testing.T) {
	cases := []struct {
		operation       string
		burst, inSecond int
	}{
		{"ExecuteCommand", 100, 40},
		{"StopTask", 100, 40},
		{"RunTask", 20, 20},
		{"DescribeTasks", 100, 20},
		{"ListTasks", 100, 20},
		{"DescribeTaskDefinition", 50, 20},
		{"RegisterTaskDefinition", 20, 1},
	}
	for _, c := range cases {
		t.Run(c.operation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := localfargate.NewLimits(localfargate.Throttle{})
				if got := l.Pass(c.operation, 1000); got != c.burst {
					t.Errorf("at once %d calls pass, want %d", got, c.burst)
				}
				time.Sleep(time.Second)
				if got := l.Pass(c.operation, 1000); got != c.inSecond {
					t.Errorf("a second later %d calls pass, want %d", got, c.inSecond)
				}
				time.Sleep(time.Hour)
				if got := l.Pass(c.operation, 1000); got != c.burst {
					t.Errorf("after a long rest %d calls pass, want the burst of %d", got, c.burst)
				}
			})
		})
	}
}

func TestOperationsShareTheirBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := localfargate.NewLimits(localfargate.Throttle{})
		stops, execs, runs := l.Pass("StopTask", 50), l.Pass("ExecuteCommand", 45), l.Pass("RunTask", 100)
		if stops != 50 || execs != 45 || runs != 5 {
			t.Errorf("%d stops, %d execs and %d runs pass, want 50, 45 and the five that are left", stops, execs, runs)
		}
		if got := l.Pass("DescribeTasks", 100); got != 100 {
			t.Errorf("%d reads pass, want 100: they have a bucket of their own", got)
		}
	})
}

func TestLaunchesAreCountedByTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := localfargate.NewLimits(localfargate.Throttle{})
		for range 10 {
			if !l.Launch(10) {
				t.Fatal("a hundred tasks do not fit the burst of a hundred")
			}
		}
		if l.Launch(1) {
			t.Error("a task more than the burst is launched")
		}
		time.Sleep(time.Second)
		if l.Launch(21) || !l.Launch(20) {
			t.Error("a second later not just twenty tasks are launched")
		}
	})
}

func TestLimitsScaleAndSwitchOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := localfargate.NewLimits(localfargate.Throttle{Scale: 0.1}).Pass("StopTask", 1000); got != 10 {
			t.Errorf("at a tenth %d calls pass, want 10", got)
		}
		if got := localfargate.NewLimits(localfargate.Throttle{Off: true}).Pass("StopTask", 1000); got != 1000 {
			t.Errorf("switched off %d calls pass, want all", got)
		}
	})
}
