package sandkeeper

import (
	"archive/zip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestABundleNeedsNoCDK: a template whose code is in a bucket that its parameters name,
// and a zip of each function with its binary and nothing else.
func TestABundleNeedsNoCDK(t *testing.T) {
	dir := t.TempDir()
	of := chosen(t, map[string]any{"bundle": dir, "mode": names.ModeEnforce})
	// Choices are made when it is built.
	inEnvironment(names.Mode, names.ModeEnforce)(t, of, of)
	for _, word := range []string{"cdk-hnb659fds", "AssetParameters", "BootstrapVersion", "aws:asset", "aws:cdk:path"} {
		if strings.Contains(of.text, word) {
			t.Errorf("the template says %s", word)
		}
	}
	if of.Parameters[paramCodeBucket]["Default"] != nil || of.Parameters[paramCodePrefix]["Default"] != "" || len(of.Parameters) != 5 {
		t.Errorf("parameters %v", of.Parameters)
	}
	for _, f := range names.Functions {
		code := at(of.one(t, "AWS::Lambda::Function", string(f)).Properties, "Code")
		same(t, string(f)+" bucket", flat(at(code, "S3Bucket")), paramCodeBucket)
		name, found := strings.CutPrefix(flat(at(code, "S3Key")), paramCodePrefix)
		if !found {
			t.Errorf("%s: key %v", f, at(code, "S3Key"))
		}
		checkZip(t, filepath.Join(dir, name), string(f))
	}
	zips, err := filepath.Glob(filepath.Join(dir, "*.zip"))
	if err != nil || len(zips) != len(names.Functions) {
		t.Errorf("zips %q, %v", zips, err)
	}
	again := t.TempDir()
	chosen(t, map[string]any{"bundle": again})
	for _, path := range zips {
		if _, err := os.Stat(filepath.Join(again, filepath.Base(path))); err != nil {
			t.Errorf("the same binary gives another zip: %v", err)
		}
	}
}

// checkZip wants one executable file that holds content.
func checkZip(t *testing.T, path, content string) {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if len(z.File) != 1 || z.File[0].Name != "bootstrap" || z.File[0].Mode().Perm() != 0o755 {
		t.Fatalf("%s holds %+v", path, z.File)
	}
	file, err := z.File[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if data, err := io.ReadAll(file); err != nil || string(data) != content {
		t.Errorf("%s holds %q, %v", path, data, err)
	}
}
