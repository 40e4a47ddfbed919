package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse/gatehouse/clients/go/publish"
	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// TestDialects reads files that Python wrote, in the dialects of spreadsheets and databases.
func TestDialects(t *testing.T) {
	const files = 500
	dir, seed := t.TempDir(), rand.Uint32()
	made := exec.Command("python3", "testdata/dialects.py", fmt.Sprint(seed), fmt.Sprint(files), dir)
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	end := time.Date(2090, 1, 31, 0, 0, 0, 0, time.UTC)
	for n := range files {
		name := filepath.Join(dir, fmt.Sprint(n))
		text, err := os.ReadFile(name + ".json")
		require.NoError(t, err)
		var want []struct {
			ID, Secret, Hash string
			Permissions      []string
			Labels           map[string]string
			NotAfter         string `json:"not_after"`
		}
		require.NoError(t, json.Unmarshal(text, &want))
		got, err := devicesOf(name + ".csv")
		if err != nil || len(got) != len(want) {
			data, _ := os.ReadFile(name + ".csv")
			t.Fatalf("seed %d, file %d: %d devices of %d, %v\n%q", seed, n, len(got), len(want), err, data)
		}
		for i, w := range want {
			d := got[i]
			if d.ID != w.ID || d.Secret != w.Secret || strings.Join(d.Hashes, "") != w.Hash ||
				!slices.Equal(d.Permissions, w.Permissions) || !maps.Equal(d.Labels, w.Labels) ||
				(w.NotAfter == "") != d.NotAfter.IsZero() || w.NotAfter != "" && !d.NotAfter.Equal(end) {
				t.Fatalf("seed %d, file %d: got %+v, want %+v", seed, n, d, w)
			}
		}
	}
}

// devicesOf returns the devices of a file.
func devicesOf(name string) (devices []publish.Device, err error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines, err := newDeviceLines(file)
	for err == nil {
		var d publish.Device
		if d, err = lines.nextDevice(); err == nil {
			devices = append(devices, d)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return devices, err
}

// TestFilesOfOthers imports other forms, or refuses with advice.
func TestFilesOfOthers(t *testing.T) {
	s := newShell(t)
	one := "1 devices: 1 valid, 0 failed; nothing was written\n"
	for name, test := range map[string]struct{ in, want string }{
		"htpasswd":               {"d:" + readyHash + "\n", one},
		"passwd of Dovecot":      {"d:{BLF-CRYPT}" + readyHash + "::::::\n", one},
		"empty lines before":     {"\n\r\n;;\nid;hash\nd;" + readyHash + "\n", one},
		"MD5 of Apache":          {"d:$apr1$eW3GY0AP$iXn449zJTQpRLPDnGUNmg/\n", "-:1: hash: a fast digest"},
		"a workbook":             {"PK\x03\x04\x14\x00", "save it as CSV UTF-8"},
		"UTF-16 without mark":    {"i\x00d\x00\n\x00", "save it as UTF-8"},
		"CR":                     {"id,secret\rd,s\r", "save the file with LF or CRLF"},
		"Latin-1":                {"id,secret\nd,\xe9\n", "-:2: is not UTF-8: save the file as UTF-8"},
		"a rounded number":       {"id,secret\n1.2E+11,s\n", "-:2: id: a spreadsheet made a rounded number"},
		"with a comma":           {"id;secret\n\"1,2E+11\";s\n", "-:2: id: a spreadsheet"},
		"a rounded secret":       {"id,secret\nd,9E-05\n", "-:2: secret: a spreadsheet"},
		"a formula":              {"id,secret\nd,#NAME?\n", "-:2: secret: a spreadsheet"},
		"the past":               {"id,secret,not_after\nd,s,2020-01-31\n", "-:2: not_after: 2020-01-31 is in the past"},
		"the past, of no export": {`{"id":"d","secret":"s","not_after":"2020-01-31T00:00:00Z"}`, "is in the past"},
		"no zone":                {"id,secret,not_after\nd,s,2090-01-31 12:00:00\n", "append Z, if it is UTC"},
		"a German date":          {"id,secret,not_after\nd,s,31.01.2090\n", "a date such as 2030-01-31"},
		"an unnamed value":       {"id,secret,\nd,s,x\n", "-:2: field 3 has no column"},
		"too many fields":        {"id,hash\nd,$argon2id$v=19$m=64,t=1,p=1$a$b\n", "quote values with separators"},
		"too few fields":         {"id,secret,permissions\nd,s\n", "2 fields, want 3"},
		"another name":           {"User Name,password\nd,s\n", `column "user_name" is unknown: name it id`},
		"EMQX":                   {"user_id,password_hash,salt\nd,a,b\n", `column "user_id" is unknown: name it id`},
		"EMQX's salt":            {"id,hash,salt\nd,a,b\n", "want it within the hash"},
		"another column":         {"id,colour\nd,s\n", `column "colour" is unknown: remove it`},
		// The quoted lines are no devices.
		"a quoted line end": {"id,secret\n\"a\nevil,s\n\",s\nd,s\n", "-:2: a quoted field has a line end"},
		"a quote left open": {"id,secret\nd,\"s\nevil,s\n", "line 2: a quote is not closed: nothing"},
		"a quote left open, long": {"id,secret\nd,\"s\n" + strings.Repeat("evil,s\n", maxDeviceLine),
			"line 2: a quote is not closed"},
	} {
		r := s.run(test.in, "device", "import", "-", "--dry-run")
		if got := r.stdout + r.stderr; !strings.Contains(got, test.want) || (r.code == 0) != (test.want == one) ||
			strings.Contains(got, "evil") {
			t.Errorf("%s: got %+v, want %q", name, r, test.want)
		}
		if name == "a quoted line end" && !strings.HasPrefix(r.stdout, "2 devices: 1 valid, 1 failed") {
			t.Errorf("%s: %s", name, r.stdout)
		}
	}
}

// TestQuotedLineEnds: the time for a record of many lines grows linearly, not quadratically.
func TestQuotedLineEnds(t *testing.T) {
	record := "\"a" + strings.Repeat("\n", maxDeviceLine-100) + "\",x\n"
	lines, err := newDeviceLines(strings.NewReader("id,secret\n" + strings.Repeat(record, 20) + "b,y\n"))
	require.NoError(t, err)
	begin := time.Now()
	for range 20 {
		if _, err := lines.nextDevice(); !errors.Is(err, errQuote) && (err == nil || err.Error() != errQuote.Error()) {
			t.Fatalf("got %v, want %v", err, errQuote)
		}
	}
	if d, err := lines.nextDevice(); err != nil || d.ID != "b" {
		t.Errorf("behind them: got %q, %v", d.ID, err)
	}
	if took := time.Since(begin); took > 10*time.Second { // a minute if each line's end has all looked at again
		t.Errorf("took %v", took)
	}
}
