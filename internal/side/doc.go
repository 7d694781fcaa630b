// Package side is what goes on beside an agent, in a process of its own: the copy of its
// journal in the spool, its tools, the watch over its files, and the word to the outside
// that it has ended. Its rule: it reads what the wrapper keeps and writes none of it, so
// that whatever becomes of it, journal, sentinel and exit status are as without it.
//
// The wrapper starts it, tells it on one pipe, in lines of JSON, what it is to do and how
// far the run is, and hears on another that tools are ready and files are told. What it
// has to keep over its own death is in the run's marker.
package side
