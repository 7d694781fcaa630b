package bench_test

import (
	"os"
	"path/filepath"
	"testing"
)

// restic is the backup tool that ours is held against, as its manual has it for S3:
// compression and connections as by default, no pass over the tree for a progress bar
// that nobody sees, its cache kept between the steps.
type restic struct {
	program string
	storage *storage
	bucket  string
	cache   string
	tree    string
}

func (r *restic) name() string { return "restic" }

func (r *restic) begin(t *testing.T, bucket, tree string) {
	t.Helper()
	r.bucket, r.tree, r.cache = bucket, tree, filepath.Join(kept(t, "work"), bucket)
	if err := os.RemoveAll(r.cache); err != nil {
		t.Fatal(err)
	}
	r.run(t, "init")
}

func (r *restic) capture(t *testing.T) used { return r.run(t, "backup", "--no-scan", r.tree) }

func (r *restic) restore(t *testing.T, into string) used {
	return r.run(t, "restore", "latest:"+r.tree, "--target", into)
}

func (r *restic) end(t *testing.T) {
	t.Helper()
	r.storage.remove(t, r.bucket)
	if err := os.RemoveAll(r.cache); err != nil {
		t.Fatal(err)
	}
}

func (r *restic) run(t *testing.T, args ...string) used {
	t.Helper()
	_, u := run{
		args: append([]string{r.program, "--quiet"}, args...),
		env: []string{
			"AWS_ACCESS_KEY_ID=" + storageKey, "AWS_SECRET_ACCESS_KEY=" + storageSecret, "AWS_DEFAULT_REGION=" + storageRegion,
			"RESTIC_REPOSITORY=s3:" + r.storage.endpoint + "/" + r.bucket, "RESTIC_PASSWORD=bench", "RESTIC_CACHE_DIR=" + r.cache,
		},
	}.measured(t)
	return u
}
