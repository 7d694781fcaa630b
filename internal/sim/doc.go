// Package sim simulates an installation deterministically, for tests: hosts,
// viewers, agents, sweeps, reclaims, an operator and ECS act on one store, one port
// call at a time, in virtual time, with faults at any call. Its rule is that an
// episode is decided by its [Script] alone, so that whatever breaks in it breaks
// again, and that every invariant is held against the state after every step.
package sim
