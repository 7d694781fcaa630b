package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// Dimension tells installations in one account apart. There is no other: each value of
// a dimension makes every metric once more, and each is charged.
const Dimension = "Install"

// Values is what one line has to tell.
type Values map[Name]float64

// Meter writes lines in embedded metric format, from which CloudWatch makes metrics.
// It may be used concurrently; a nil one writes nothing.
type Meter struct {
	Out      io.Writer
	Install  string
	Function names.Function

	mu sync.Mutex
}

// Emit writes one line: the charged values as metrics, the others and sparse zeros beside
// them. It
// panics for a name that the list does not have, or not from this function. A line that
// cannot be written is dropped: nobody is left to tell.
func (m *Meter) Emit(values Values) {
	if m == nil || len(values) == 0 {
		return
	}
	line := map[string]any{Dimension: m.Install, "function": string(m.Function)}
	listed := []definition{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		metric, ok := Find(name)
		if !ok || !slices.Contains(metric.From, m.Function) {
			panic(fmt.Sprintf("metrics: %s is not listed as %s's", name, m.Function))
		}
		line[string(name)] = values[name]
		if metric.Charged && !(metric.Sparse && values[name] == 0) {
			listed = append(listed, definition{Name: name, Unit: metric.Unit})
		}
	}
	line["_aws"] = directives{
		Timestamp: time.Now().UnixMilli(),
		Metrics:   []directive{{Namespace: names.MetricsSpace, Dimensions: [][]string{{Dimension}}, Metrics: listed}},
	}
	m.write(line)
}

func (m *Meter) write(line map[string]any) {
	data, err := json.Marshal(line)
	if err != nil {
		panic(fmt.Sprintf("metrics: %v", err)) // a value that is no number
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = m.Out.Write(append(data, '\n'))
}

// directives is the member that makes a line of JSON one of metrics.
type directives struct {
	Timestamp int64       `json:"Timestamp"`
	Metrics   []directive `json:"CloudWatchMetrics"`
}

type directive struct {
	Namespace  string       `json:"Namespace"`
	Dimensions [][]string   `json:"Dimensions"`
	Metrics    []definition `json:"Metrics"`
}

type definition struct {
	Name Name `json:"Name"`
	Unit Unit `json:"Unit"`
}
