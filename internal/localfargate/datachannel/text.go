package datachannel

import "unicode/utf8"

// agentText passes terminal output on as the agent does: it reads runes, writes
// the first byte of what it takes for an error, and keeps an incomplete tail for
// the next read. Since U+FFFD itself looks like an error, EF BF BD becomes EF; and
// a tail that nothing completes is lost.
func agentText(data []byte) (text, rest []byte) {
	text = make([]byte, 0, len(data))
	for i := 0; i < len(data); {
		if !utf8.FullRune(data[i:]) {
			return text, append([]byte(nil), data[i:]...)
		}
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError {
			text = append(text, data[i])
		} else {
			text = append(text, data[i:i+size]...)
		}
		i += size
	}
	return text, nil
}
