// Package bench measures what Sandkeeper promises in figures, and holds them against
// their goals. Its rule: every figure is counted or timed in the run that prints it,
// and what stands in for AWS is said beside it. Ratios are of one run; where sleeping
// would tell nothing the clock is a bubble's, so that such a figure counts calls and
// waits, not this machine's speed.
//
// It is tests only: make bench runs TestFigures, which prints a table and writes
// bench.json. Without the flag -figures the test measures what needs no real time, on
// a smaller scale.
package bench
