// Package setup prepares a workspace from a plan, inside the sandbox: the clone, skills
// and instruction files, dependencies, the definition's own steps. Its rule: everything
// runs as the container's user, a step that was done is not done again, what the user
// changed is left as it is, and no secret is in a command line, a file of the workspace,
// or what is told of a failure.
package setup
