package workspace

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// slabSize is the room of a slab: the largest pack, or the largest frame with what
// redaction must see around it.
const slabSize = manifest.MaxPack

// slabs are the large buffers of captures and restores. They lie outside the garbage
// collector's heap, which stays small, cost memory only where they were written, and
// are never unmapped: a transport may look at a body that it has given up.
var slabs struct {
	mu   sync.Mutex
	free [][]byte
	made int
}

// takeSlab returns an empty buffer of capacity slabSize.
func takeSlab() ([]byte, error) {
	slabs.mu.Lock()
	defer slabs.mu.Unlock()
	if n := len(slabs.free); n > 0 {
		slab := slabs.free[n-1]
		slabs.free = slabs.free[:n-1]
		return slab, nil
	}
	slab, err := unix.Mmap(-1, 0, slabSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", slabSize, err)
	}
	slabs.made++
	return slab[:0], nil
}

// pool is a fixed number of slabs: who needs one waits for it.
type pool chan []byte

func newPool(n int) (pool, error) {
	p := make(pool, n)
	for range n {
		slab, err := takeSlab()
		if err != nil {
			p.close()
			return nil, err
		}
		p <- slab
	}
	return p, nil
}

// close gives the slabs that are in the pool back.
func (p pool) close() {
	slabs.mu.Lock()
	defer slabs.mu.Unlock()
	for {
		select {
		case slab := <-p:
			slabs.free = append(slabs.free, slab[:0])
		default:
			return
		}
	}
}
