package localfargate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// adminRoutes are the server's own paths, beside the API of ECS:
//
//	GET  /_local/tasks              all tasks and what really runs
//	GET  /_local/tasks/{id}         one
//	POST /_local/tasks/{id}/kill    its main processes die
//	POST /_local/tasks/{id}/interrupt  its capacity is taken back, after the notice's time
//	POST /_local/tasks/{id}/age     it was created earlier, by a duration as {"by":"2h"}
//	POST /_local/tasks/{id}/containers/{name}/restart  as its restart policy would
//	GET  /_local/tasks/{id}/faults  what goes wrong on purpose
//	PUT  /_local/tasks/{id}/faults  the same, replaced as a whole
//	GET  /_local/faults             what new tasks begin with
//	PUT  /_local/faults
//	GET  /_local/metrics            calls by operation
//
// Bodies and answers are JSON; what changes something must say so in its content
// type, which a web page cannot do unasked.
func (s *Server) adminRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /_local/tasks", s.admin(func(*http.Request) (any, error) { return s.Tasks(), nil }))
	mux.HandleFunc("GET /_local/metrics", s.admin(func(*http.Request) (any, error) { return s.Metrics(), nil }))
	mux.HandleFunc("GET /_local/tasks/{id}", s.admin(func(r *http.Request) (any, error) { return s.Task(r.PathValue("id")) }))
	mux.HandleFunc("POST /_local/tasks/{id}/kill", s.admin(func(r *http.Request) (any, error) {
		return struct{}{}, s.KillTask(r.PathValue("id"))
	}))
	mux.HandleFunc("POST /_local/tasks/{id}/interrupt", s.admin(func(r *http.Request) (any, error) {
		return struct{}{}, s.InterruptTask(r.PathValue("id"))
	}))
	mux.HandleFunc("POST /_local/tasks/{id}/age", s.admin(func(r *http.Request) (any, error) {
		by, err := readAge(r)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.AgeTask(r.PathValue("id"), by)
	}))
	mux.HandleFunc("POST /_local/tasks/{id}/containers/{name}/restart", s.admin(func(r *http.Request) (any, error) {
		return struct{}{}, s.RestartContainer(r.PathValue("id"), r.PathValue("name"))
	}))
	mux.HandleFunc("GET /_local/tasks/{id}/faults", s.admin(func(r *http.Request) (any, error) {
		task, err := s.Task(r.PathValue("id"))
		return task.Faults, err
	}))
	mux.HandleFunc("PUT /_local/tasks/{id}/faults", s.admin(func(r *http.Request) (any, error) {
		f, err := readFaults(r)
		if err != nil {
			return nil, err
		}
		return f, s.SetFaults(r.PathValue("id"), f)
	}))
	mux.HandleFunc("GET /_local/faults", s.admin(func(*http.Request) (any, error) { return s.DefaultFaults(), nil }))
	mux.HandleFunc("PUT /_local/faults", s.admin(func(r *http.Request) (any, error) {
		f, err := readFaults(r)
		if err != nil {
			return nil, err
		}
		return f, s.SetDefaultFaults(f)
	}))
}

func readFaults(r *http.Request) (Faults, error) {
	var f Faults
	if err := readStrict(r, &f); err != nil {
		return Faults{}, fmt.Errorf("read faults: %w", err)
	}
	return f, f.Check()
}

func readAge(r *http.Request) (time.Duration, error) {
	var q struct {
		By string `json:"by"`
	}
	if err := readStrict(r, &q); err != nil {
		return 0, fmt.Errorf("read age: %w", err)
	}
	by, err := time.ParseDuration(q.By)
	if err != nil {
		return 0, fmt.Errorf("read age: %w", err)
	}
	return by, nil
}

// readStrict reads a body whose members must all be known.
func readStrict(r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, bodyLimit))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// admin answers with JSON, or with one line of text and a fitting status.
func (s *Server) admin(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			http.Error(rw, "content type must be application/json", http.StatusUnsupportedMediaType)
			return
		}
		out, err := do(r)
		switch {
		case errors.Is(err, ErrUnknownTask):
			http.Error(rw, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(rw, err.Error(), http.StatusBadRequest)
		default:
			rw.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(rw).Encode(out)
		}
	}
}
