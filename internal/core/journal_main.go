package core

import "time"

// LongestStop is the longest stop timeout that Fargate takes, and how long before a task's
// end Spot and retirement give notice of it.
const LongestStop = 2 * time.Minute

// MainProcess is what the main process of a sandbox's container may be: text for sh -c. It
// outlives every agent. ECS tells it by SIGTERM that the task is to end, and does not say
// why: it stays while an agent, or work for Sandkeeper, goes on in the container, so that
// the two minutes of a notice are there for what is to be saved. Where an agent worked it
// stays until nothing has gone on for 20 seconds, in which somebody may come for what the
// agent left; else it goes at once. What goes on is seen by the words of its processes,
// which every user can read; where /proc is not the container's own nothing can be seen,
// and it goes.
const MainProcess = `trap 'told=1' TERM
told= stay=0 n=0
while [ -z "$told" ]; do sleep 3600 & wait $!; done
goes_on() { [ -z "${` + JournalInitVariable + `-}" ] && cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\000' ' ' | grep -q "$@"; }
if goes_on -e '[s]andkeeper-run ' -e '[s]andkeeper-agent wrapper '; then stay=20; fi
while :; do
  if goes_on -e '[s]andkeeper-run' -e '[s]andkeeper-agent '; then n=0; else n=$((n + 1)); fi
  [ $n -le $stay ] || exit 0
  sleep 1 & wait $!
done
`
