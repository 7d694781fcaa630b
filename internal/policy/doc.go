// Package policy answers what an agent may run, write and reach: the permission tool of
// a sandbox. Its rule: what cannot be told is never allowed where anything is
// restricted, a rule that denies wins over every rule that allows, and an answer is
// given for what the words come to, never for how they are spelled.
//
// It answers an agent that asks; it confines none that does not. A rule that denies a
// command stops that command and its usual disguises; only a list of what is allowed
// stops everything else.
package policy
