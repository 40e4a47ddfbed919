package nginxconfig

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLarge: many locations take seconds of CPU, not minutes. CPU time of this thread doesn't depend on other load.
func TestLarge(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var named, joined strings.Builder
	for i := range 250 {
		fmt.Fprintf(&named, "    location /l%d/ { set $a%d b; set $c%d d; root /s; try_files $uri @n%d; }\n"+
			"    location @n%d { rewrite_by_lua_file /no/such.lua; proxy_pass http://service; }\n", i, i, i, i, i)
		fmt.Fprintf(&joined, "    location /l%d/ { set $x /a$y; set $y /b; error_page 404 $x$y; try_files $uri /%d; "+
			"}\n", i, i)
	}
	var chained strings.Builder
	for i := range 250 {
		fmt.Fprintf(&chained, "server { listen 127.0.0.1:%d; location / { proxy_pass http://127.0.0.1:%d; } }\n", 10001+i,
			10000+i)
	}
	for name, replace := range map[string][]string{
		"named": {inServer, named.String() + inServer}, "joined": {inServer, joined.String() + inServer},
		"chained": {anyServer, chained.String() + anyServer},
	} {
		begin := used()
		analyzeShipped(t, shippedRules, replace...)
		took := used() - begin
		if t.Logf("%s: took %v", name, took); took > 10*time.Second {
			t.Errorf("%s: want 10 s at most", name)
		}
	}
}
