//go:build !linux

package main

import (
	"context"
	"errors"
)

// unpacks says that this system cannot keep a tree inside a directory.
const unpacks = false

// unpack is refused before it is called.
func unpack(context.Context, archived, string, string, func(files, bytes int64)) (unpacked, error) {
	return unpacked{}, errors.ErrUnsupported
}
