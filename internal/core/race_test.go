//go:build race

package core_test

// raceDetector says that this test runs many times slower than it would.
const raceDetector = true
