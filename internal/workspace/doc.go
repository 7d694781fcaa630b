// Package workspace is the engine that runs inside a sandbox: it captures a directory
// tree into packs and layers, restores a tree from them and verifies what is stored.
// Its rule: nothing outside the root is ever read or written, whatever the tree does
// meanwhile and whatever a manifest says, and what could not be stored is named.
package workspace
