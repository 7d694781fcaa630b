package bench_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// built makes a program that the tools modfile pins.
func built(t *testing.T, pkg string) string {
	t.Helper()
	path := kept(t, filepath.Base(pkg))
	c := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools.mod", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
	c.Dir = filepath.Join("..", "..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v: %.1000s", pkg, err, said)
	}
	return path
}

// storage is an S3 on loopback: versitygw over a folder, in memory where there is
// such a file system.
type storage struct {
	*s3.Client
	endpoint string
	dir      string // a folder a bucket
	log      string // a line a request
}

const (
	storageKey    = "test"
	storageSecret = "test"
	storageRegion = "us-east-1"
)

func newStorage(t *testing.T) *storage {
	t.Helper()
	program := built(t, "github.com/versity/versitygw/cmd/versitygw")
	s := &storage{dir: memoryDir(t), log: filepath.Join(t.TempDir(), "access.log")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	s.endpoint = "http://" + address
	c := exec.Command(program, "--quiet", "--port", address, "--access-log", s.log, "posix", s.dir)
	c.Env = []string{"ROOT_ACCESS_KEY=" + storageKey, "ROOT_SECRET_KEY=" + storageSecret}
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	s.Client = s3.New(s3.Options{
		BaseEndpoint: new(s.endpoint), UsePathStyle: true, Region: storageRegion,
		Credentials: credentials.NewStaticCredentialsProvider(storageKey, storageSecret, ""),
	})
	s.reached(t)
	return s
}

// memoryDir is a folder in memory where there is such a file system, so that no disk
// is measured; it is removed at the end of the test. A disk's file system takes many
// times as long for a tree where one was removed before.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sandkeeper-bench-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// reached returns when the store answers.
func (s *storage) reached(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var err error
	for range 250 {
		if _, err = s.ListBuckets(t.Context(), &s3.ListBucketsInput{}); err == nil {
			return
		}
		<-tick.C
	}
	t.Fatalf("reach the store: %v", err)
}

// create makes a bucket.
func (s *storage) create(t *testing.T, bucket string) {
	t.Helper()
	if _, err := s.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
}

// remove frees what a bucket takes.
func (s *storage) remove(t *testing.T, bucket string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, bucket)); err != nil {
		t.Fatal(err)
	}
}

// puts counts the objects that were put into a bucket so far, by the store's log. What
// is asked last is in it last.
func (s *storage) puts(t *testing.T, bucket string) (n int) {
	t.Helper()
	mark := fmt.Sprintf("mark-%d", time.Now().UnixNano())
	_, _ = s.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: &bucket, Key: &mark})
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 250 {
		n, marked := s.count(t, bucket, mark)
		if marked {
			return n
		}
		<-tick.C
	}
	t.Fatalf("the store's log lacks a request that was answered")
	return 0
}

func (s *storage) count(t *testing.T, bucket, mark string) (n int, marked bool) {
	t.Helper()
	f, err := os.Open(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if strings.Contains(line, " "+bucket+" ") && strings.Contains(line, " s3_PutObject ") {
			n++
		}
		marked = marked || strings.Contains(line, mark)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return n, marked
}
