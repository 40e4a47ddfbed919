package stack

// A Child is a program that runs beside a stack: an upstream of a test, for example. It ends with
// its parent at the latest, however that ends.
type Child struct{ process *process }

// StartChild starts the program at path. Its output is appended to the file log, and env, NAME=value
// each, is added to its environment. If it ends before Stop, onExit is called once, with an [ExitError].
func StartChild(name, path string, args, env []string, log string, onExit func(error)) (*Child, error) {
	process, err := start(program{name: name, path: path, args: args, env: env, log: log}, onExit)
	if err != nil {
		return nil, err
	}
	return &Child{process}, nil
}

// Stop ends the program, by SIGKILL if it is still there 5 s after SIGTERM, and returns when it has ended.
func (c *Child) Stop() error { return c.process.stop(stopGrace) }
