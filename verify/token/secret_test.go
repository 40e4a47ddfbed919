package token_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/verify/token"
)

func TestReadSecrets(t *testing.T) {
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 1024)
	for _, test := range []struct {
		name, text string
		want       []string
		problem    string // part of the error
	}{
		{"one", a + "\n", []string{a}, ""},
		{"no line end", a, []string{a}, ""},
		{"two", a + "\n" + b + "\n", []string{a, b}, ""},
		{"line ends of Windows", a + "\r\n" + b + "\r\n", []string{a, b}, ""},
		{"empty", "", nil, "line 1 has 0 bytes, want 32 to 1024"},
		{"short", a[1:] + "\n", nil, "line 1 has 31 bytes, want 32 to 1024"},
		{"second one short", a + "\nhunter2\n", nil, "line 2 has 7 bytes"},
		{"empty line between", a + "\n\n" + b, nil, "line 2 has 0 bytes"},
		{"long", b + "b", nil, "line 1 has 1025 bytes"},
		{"twice", a + "\n" + a, nil, "line 2 is a duplicate"},
		{"five", strings.Join([]string{a, b, a + "1", a + "2", a + "3"}, "\n"), nil, "5 lines, at most 4"},
		{"huge", strings.Repeat(a+"\n", 1000), nil, "over 4104 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "secret")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := token.ReadSecrets(path)
			if !slices.Equal(got, test.want) || (err != nil) != (test.problem != "") {
				t.Fatalf("got %q, %v", got, err)
			}
			if err != nil && (!strings.Contains(err.Error(), test.problem) || !strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("got %q, want the file's name and %q", err, test.problem)
			}
		})
	}
	if _, err := token.ReadSecrets("/no/such/file"); err == nil {
		t.Error("a file that isn't there: no error")
	}
}
