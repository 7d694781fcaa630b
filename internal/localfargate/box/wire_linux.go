package box

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxPacket holds the largest request: a command line is at most 128 KiB an
// argument, and JSON may double it.
const maxPacket = 400 << 10

// request is what the outside asks of the init.
type request struct {
	Op     string   `json:"op"` // setup, exec, signal, ping
	ID     int      `json:"id,omitempty"`
	Spec   *Spec    `json:"spec,omitempty"`
	Argv   []string `json:"argv,omitempty"`
	Env    []string `json:"env,omitempty"`
	Dir    string   `json:"dir,omitempty"`
	Signal int      `json:"signal,omitempty"`
}

// reply is what the init answers or reports. ID 0 is the main process.
type reply struct {
	Op     string `json:"op"` // started, failed, exited, alive
	ID     int    `json:"id,omitempty"`
	PID    int    `json:"pid,omitempty"`
	Status int    `json:"status,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// wire is one end of the control socket; each packet is one JSON value, with at
// most one descriptor attached. Send may be called by many, receive by one.
type wire struct {
	conn *net.UnixConn
	mu   sync.Mutex
	buf  []byte
}

// pair makes the two ends of a control socket.
func pair() (near *wire, far *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make control socket: %w", err)
	}
	far = os.NewFile(uintptr(fds[1]), "control")
	file := os.NewFile(uintptr(fds[0]), "control")
	defer file.Close()
	if near, err = newWire(file); err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// newWire speaks over a duplicate of file's descriptor.
func newWire(file *os.File) (*wire, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("open control socket: %T is no unix socket", conn)
	}
	if err := unixConn.SetWriteBuffer(maxPacket); err != nil {
		conn.Close()
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	return &wire{conn: unixConn, buf: make([]byte, maxPacket)}, nil
}

func (w *wire) send(v any, attach *os.File) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode control packet: %w", err)
	}
	if len(data) > maxPacket {
		return fmt.Errorf("send control packet: %d bytes are more than %d", len(data), maxPacket)
	}
	var rights []byte
	if attach != nil {
		rights = unix.UnixRights(int(attach.Fd()))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, _, err := w.conn.WriteMsgUnix(data, rights, nil); err != nil {
		return fmt.Errorf("send control packet: %w", err)
	}
	return nil
}

// receive reads one packet into v. The attached file, if any, is the caller's.
func (w *wire) receive(v any) (*os.File, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := w.conn.ReadMsgUnix(w.buf, rights)
	if err != nil {
		return nil, fmt.Errorf("receive control packet: %w", err)
	}
	if n == 0 {
		return nil, fmt.Errorf("receive control packet: %w", ErrEnded)
	}
	file, err := attached(rights[:oobn])
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(w.buf[:n], v); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("decode control packet: %w", err)
	}
	return file, nil
}

func attached(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "tty"), nil
}
