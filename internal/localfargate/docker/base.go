package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
)

// Busybox is where Debian's busybox-static puts its program.
const Busybox = "/bin/busybox"

// Import makes an image of one static busybox, its programs as links, and the few files
// and directories that a sandbox and Lambda's runtime need: a base for where no image
// can be pulled. An image of that name is replaced.
func (e *Engine) Import(ctx context.Context, name, busybox string) error {
	layer, err := baseLayer(ctx, busybox)
	if err != nil {
		return fmt.Errorf("import image %s: %w", name, err)
	}
	repository, tag, _ := strings.Cut(name, ":")
	query := url.Values{"fromSrc": {"-"}, "repo": {repository}, "tag": {tag}, "changes": {"ENV PATH=/bin"}}
	if err := e.call(ctx, http.MethodPost, "/images/create?"+query.Encode(), layer, nil); err != nil {
		return fmt.Errorf("import image %s: %w", name, err)
	}
	return nil
}

// Derive makes an image of that name which is another one with a label of its own: what runs
// on it is told from what else runs on the other. The engine pulls the other one where it
// has it not; it is an [APIError] of status 200 if that cannot be had.
func (e *Engine) Derive(ctx context.Context, name, from string) error {
	response, err := e.request(ctx, http.MethodPost, "/build?"+url.Values{"t": {name}, "version": {"1"}}.Encode(), deriving(name, from), http.Header{"Content-Type": {"application/x-tar"}})
	if err != nil {
		return fmt.Errorf("make image %s of %s: %w", name, from, err)
	}
	defer response.Body.Close()
	// What the engine says while it works, the last of it a refusal or the image.
	for said := json.NewDecoder(response.Body); ; {
		var step struct{ Error string }
		switch err := said.Decode(&step); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("make image %s of %s: %w", name, from, err)
		case step.Error != "":
			return fmt.Errorf("make image %s of %s: %w", name, from, &APIError{Status: response.StatusCode, Message: step.Error})
		}
	}
}

// deriving is what an engine builds such an image from.
func deriving(name, from string) *bytes.Buffer {
	file := fmt.Appendf(nil, "FROM %s\nLABEL %s.image=%q\n", from, Label, name)
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	_ = w.WriteHeader(&tar.Header{Name: "Dockerfile", Mode: 0o644, Size: int64(len(file))}) // to memory
	_, _ = w.Write(file)
	_ = w.Close()
	return &all
}

func baseLayer(ctx context.Context, busybox string) (*bytes.Buffer, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, fmt.Errorf("read busybox (Debian's busybox-static): %w", err)
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list programs of %s: %w", busybox, err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(content)
		}
	}
	for _, dir := range []string{"bin/", "dev/", "etc/", "proc/", "sys/", "root/", "usr/", "usr/bin/", "var/", "var/task/", "var/runtime/", "var/rapid/", "opt/"} {
		put(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, program)
	for program := range strings.FieldsSeq(string(list)) {
		if program != "busybox" {
			put(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + program, Linkname: "busybox"}, nil)
		}
	}
	put(tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/bin/env", Linkname: "/bin/busybox"}, nil)
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	if err != nil {
		return nil, err
	}
	return &layer, w.Close()
}
