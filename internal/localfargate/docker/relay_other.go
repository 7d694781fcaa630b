//go:build !linux

package docker

import (
	"os"

	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

func rawCopy(*os.File) (*os.File, error) { return nil, box.ErrUnsupported }
