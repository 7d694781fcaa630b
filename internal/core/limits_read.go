package core

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// limitChoices are the limits that an installation may choose, as its stack writes them:
// durations as Go does, or in days ("90d"). What is not there has its default.
type limitChoices struct {
	RunTTL         string `json:"runTTL"`
	PauseTTL       string `json:"pauseTTL"`
	IdleTTL        string `json:"idleTTL"`
	Retention      string `json:"retention"`
	CheckpointHold string `json:"checkpointHold"`
	BreakerWindow  string `json:"breakerWindow"`
	ExpiringBefore string `json:"expiringBefore"`
	BreakerMost    int    `json:"breakerMost"`
	// Dollars.
	RunSpendCap    float64 `json:"runSpendCap"`
	TenantSpendCap float64 `json:"tenantSpendCap"`
}

// ReadLimits reads {"runTTL":"8h","breakerMost":50,…}: the default limits but for what an
// installation chose. It errs for what it does not know, and for limits that do not go
// together.
func ReadLimits(text string) (Limits, error) {
	var chosen limitChoices
	if err := DecodeStrict([]byte(text), &chosen); err != nil {
		return Limits{}, fmt.Errorf("read limits: %w", err)
	}
	l := DefaultLimits
	for _, c := range []struct {
		name, text string
		into       *time.Duration
	}{
		{"runTTL", chosen.RunTTL, &l.RunTTL}, {"pauseTTL", chosen.PauseTTL, &l.PauseTTL}, {"idleTTL", chosen.IdleTTL, &l.IdleTTL},
		{"retention", chosen.Retention, &l.Retention}, {"checkpointHold", chosen.CheckpointHold, &l.CheckpointHold},
		{"breakerWindow", chosen.BreakerWindow, &l.BreakerWindow}, {"expiringBefore", chosen.ExpiringBefore, &l.ExpiringBefore},
	} {
		if c.text == "" {
			continue
		}
		d, err := readDuration(c.text)
		if err != nil {
			return Limits{}, fmt.Errorf("read limits: %s: %w", c.name, err)
		}
		*c.into = d
	}
	if chosen.BreakerMost != 0 {
		l.BreakerMost = chosen.BreakerMost
	}
	for name, usd := range map[string]float64{"runSpendCap": chosen.RunSpendCap, "tenantSpendCap": chosen.TenantSpendCap} {
		if !(usd >= 0 && usd <= MostDollars.USD()) {
			return Limits{}, fmt.Errorf("read limits: %s: want dollars from 0 to %.0f, got %g", name, MostDollars.USD(), usd)
		}
	}
	l.RunSpendCap, l.TenantSpendCap = DollarsOf(chosen.RunSpendCap), DollarsOf(chosen.TenantSpendCap)
	if err := l.Validate(); err != nil {
		return Limits{}, err
	}
	return l, nil
}

// mostDays keeps a duration far from where it overflows.
const mostDays = 3650

// readDuration reads a duration above zero.
func readDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if number, days := strings.CutSuffix(text, "d"); days {
		var n uint64
		n, err = strconv.ParseUint(number, 10, 16)
		d = time.Duration(min(n, mostDays+1)) * 24 * time.Hour
	}
	if err != nil || d <= 0 || d > mostDays*24*time.Hour {
		return 0, fmt.Errorf(`want a duration as "90m", "36h" or "7d", at most %dd, got %.40q`, mostDays, text)
	}
	return d, nil
}
