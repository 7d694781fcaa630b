package core

import "context"

// ModeDefault is the settings of an installation in which an operator may not have
// set a mode yet: until then Mode holds. What an operator sets wins from then on.
type ModeDefault struct {
	Controls
	Mode Mode
}

// Control reads the settings and fills in a mode that nobody has set.
func (d ModeDefault) Control(ctx context.Context) (Control, error) {
	c, err := d.Controls.Control(ctx)
	if err == nil && c.Mode == "" {
		c.Mode = d.Mode
	}
	return c, err
}
