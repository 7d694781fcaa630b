package core

import (
	"strings"
	"unicode/utf8"
)

// Clip is as much of the beginning of a text as fits into most bytes, in whole characters;
// what is no UTF-8 is replaced. It is for texts that people read.
func Clip(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}
