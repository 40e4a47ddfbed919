package stack

import (
	"fmt"
	"os"
)

// A Child is a program that runs beside a stack, for example a test's upstream. A child ends with its parent at the
// latest.
type Child struct{ process *process }

// StartChild starts the program at path, by default this program. The output is appended to the file log, and env,
// NAME=value each, to the environment. If the program ends before Stop, onExit, unless nil, is called once, with an
// [ExitError].
func StartChild(name, path string, args, env []string, log string, onExit func(error)) (*Child, error) {
	if path == "" {
		var err error
		if path, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
	}
	if onExit == nil {
		onExit = func(error) {}
	}
	process, err := start(program{name: name, path: path, args: args, env: env, log: log}, onExit)
	if err != nil {
		return nil, err
	}
	return &Child{process}, nil
}

// PID returns the program's process id.
func (c *Child) PID() int { return c.process.pid }

// Stop ends the program by SIGTERM and, after 5 s, by SIGKILL, and returns when the program has ended.
func (c *Child) Stop() error { return c.process.stop(stopGrace) }
