// Package require ends tests whose preparation fails.
package require

// T is a test.
type T interface {
	Helper()
	Fatal(args ...any)
}

// NoError ends the test at an error.
func NoError(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
