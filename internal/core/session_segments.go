package core

import (
	"context"
	"time"
)

// SegmentsRequest asks where the output of a run lies, from a byte position on: for viewers
// that read it from the store themselves, and come back with the position they got to.
type SegmentsRequest struct {
	RunKey
	From int64 `json:"from"`
}

// SegmentsReport tells pieces of a run's output in order, without a gap.
type SegmentsReport struct {
	Segments []SegmentView `json:"segments"`
	Next     int64         `json:"next"` // from where to ask again
	// End says that nothing follows.
	End bool    `json:"end,omitempty"`
	Run RunView `json:"run"`
}

// SegmentView is a piece of a run's output: its bytes, or where they can be read for a
// while.
type SegmentView struct {
	From    int64             `json:"from"`
	End     int64             `json:"end"`
	SHA256  string            `json:"sha256,omitempty"` // hex, over the piece's bytes
	Data    []byte            `json:"data,omitempty"`   // base64
	URL     string            `json:"url,omitempty"`    // to GET, with these headers
	Headers map[string]string `json:"headers,omitempty"`
	Until   Millis            `json:"until,omitempty"` // how long the URL is good
	Omitted bool              `json:"omitted,omitempty"`
	// Early says that the log does not have the piece yet: a sandbox has sent it ahead, and
	// what the log has there in the end is what counts.
	Early bool `json:"early,omitempty"`
}

// GetGranter grants the right to read one object.
type GetGranter interface {
	// GrantGet is as that of [Objects].
	GrantGet(ctx context.Context, key, version string, life time.Duration) (Grant, error)
}

// segmentsMost is how many pieces one answer tells at most, and segmentsData how many bytes
// of those that are in it.
const (
	segmentsMost = 500
	segmentsData = 2 << 20
)

// Segments tells where the output of a run lies, for whoever may read it. Nothing is asked
// of the sandbox.
func (s *Session) Segments(ctx context.Context, q SegmentsRequest) (SegmentsReport, error) {
	if err := checkRun(q.RunKey); err != nil {
		return SegmentsReport{}, err
	}
	if q.From < 0 {
		return SegmentsReport{}, invalid("invalid-position", "from: want 0 or more, got %d", q.From)
	}
	r, err := s.runs().Run(ctx, q.RunKey)
	if err != nil {
		return SegmentsReport{}, unknownRun("segments", q.RunKey, err)
	}
	segments, err := s.Log.Log.Segments(ctx, q.RunKey)
	if err != nil {
		return SegmentsReport{}, err
	}
	report := SegmentsReport{Segments: []SegmentView{}, Next: q.From, Run: viewOf(r)}
	held := 0
	for _, segment := range segments {
		switch {
		case segment.End <= q.From || segment.From > report.Next: // the log has moved on since the record was read
			continue
		case len(report.Segments) == segmentsMost || held > segmentsData:
			return report, nil
		}
		view := SegmentView{From: segment.From, End: segment.End, SHA256: segment.SHA256, Data: segment.Inline, Omitted: segment.Omitted}
		if err := s.grantRead(ctx, segment.Blob, &view); err != nil {
			return SegmentsReport{}, err
		}
		held += len(view.Data)
		report.Segments, report.Next = append(report.Segments, view), segment.End
	}
	if report.End = (r.Sealed != nil || r.Status.Terminal()) && report.Next >= r.LogEnd; report.End {
		return report, nil
	}
	return report, s.early(ctx, r, &report)
}

// early adds what the spool has behind the log.
func (s *Session) early(ctx context.Context, r Run, report *SegmentsReport) error {
	if s.Spool == nil || report.Next < r.LogEnd {
		return nil
	}
	chain, _, err := SpoolReader{s.Spool, s.limits().Page, s.log()}.chain(ctx, r.RunKey, report.Next)
	if err != nil {
		s.log().InfoContext(ctx, "spool", "run", r.RunKey.String(), "err", err)
		return nil // a cache
	}
	for _, p := range chain {
		view := SegmentView{From: p.From, End: p.End, SHA256: p.SHA256, Early: true}
		if err := s.grantRead(ctx, SpoolKey(r.RunKey, p), &view); err != nil {
			return err
		}
		report.Segments, report.Next = append(report.Segments, view), p.End
	}
	return nil
}

func (s *Session) grantRead(ctx context.Context, key string, view *SegmentView) error {
	if key == "" {
		return nil
	}
	if s.Grants == nil {
		return refuse("segments", "object "+key, "no-grants")
	}
	grant, err := s.Grants.GrantGet(ctx, key, "", GrantLife)
	view.URL, view.Headers, view.Until = grant.URL, grant.Header, grant.Until
	return err
}
