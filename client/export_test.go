package client

// By has the checkpoint function answered by a test.
func (c *Checkpoints) By(i Invoker) { c.function.Lambda = i }
