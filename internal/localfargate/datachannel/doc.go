// Package datachannel is the far side of ECS Exec: the message gateway that a
// client dials and the agent that runs a command on a terminal inside the
// container. Its rule: it keeps the habits of the real ones, the unhelpful ones
// included (late first output, terminal line ends, damaged UTF-8, a short drain,
// repair of the oldest message only), because clients must live with them.
package datachannel
