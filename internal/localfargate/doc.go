// Package localfargate stands in for Fargate: the ECS API, the message gateway of
// ECS Exec and the tasks, which are real process trees on this machine. Its rule:
// a caller that speaks to ECS must not be able to tell the difference, neither in
// what works nor in what does not (late consistency, throttling, lost frames), and
// nothing of a task outlives its server. It listens on loopback only.
package localfargate
