package conformance

import (
	"net/http"
	"testing"
	"time"
)

// dateCases returns the cases of datesOf for the object's date, which is known after the publication.
func (s *server) dateCases(t *testing.T) []testCase {
	t.Helper()
	var date time.Time
	s.await(t, "GET /p/42", func(r *response) (past bool) {
		date, _ = time.Parse(http.TimeFormat, r.get("last-modified"))
		now, err := time.Parse(http.TimeFormat, r.get("date"))
		return err == nil && !date.IsZero() && now.After(date.Add(time.Second)) // all of datesOf has passed
	})
	return datesOf(date)
}

// datesOf returns conditional requests by the date of /p/42.
func datesOf(date time.Time) []testCase {
	text := date.Format(http.TimeFormat)
	since := func(value string) string { return "GET /p/42\nif-modified-since: " + value }
	return []testCase{
		{"9110 8.8.2", "a 200 has its date", "GET /p/42", 200, "hit", "last-modified: " + text},
		{"9110 13.1.3", "since its date", since(text), 304, "hit", `etag: "42"`},
		{"9110 13.1.3", "since a second later, which may be the date of another origin",
			since(date.Add(time.Second).Format(http.TimeFormat)), 200, "hit", ""},
		{"9110 13.1.3", "since a second before", since(date.Add(-time.Second).Format(http.TimeFormat)), 200, "hit", ""},
		{"9110 13.1.3", "since an hour ahead", since(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)),
			200, "hit", ""},
		{"9110 5.6.7", "since its date in the form of RFC 850, which no client may send",
			since(date.Format("Monday, 02-Jan-06 15:04:05 GMT")), 200, "hit", ""},
		{"9110 5.6.7", "since its date in the form of asctime, which no client may send",
			since(date.Format(time.ANSIC)), 200, "hit", ""},
		{"9110 13.1.3", "since its date, twice", since(text) + "\nif-modified-since: " + text, 200, "hit", ""},
		{"9110 13.1.3", "since its date, and another tag", since(text) + "\nif-none-match: \"43\"", 200, "hit", ""},
		{"9110 13.1.3", "since its date, and its tag", since(text) + "\nif-none-match: \"42\"", 304, "hit", ""},
		{"9110 13.1.3", "since its date, and an empty list of tags", since(text) + "\nif-none-match:", 200, "hit", ""},
		{"9110 13.1.3", "since its date, of a coding", since(text) + "\naccept-encoding: gzip", 304, "hit", `etag: W/"42"`},
		{"9110 13.1.3", "since its date, with a range", since(text) + "\nrange: bytes=0-1", 304, "hit", ""},
		{"9110 13.1.5", "a range if it still has its date", "GET /p/42\nrange: bytes=0-9\nif-range: " + text, 206, "hit",
			"content-range: bytes 0-9/1361\nlast-modified: " + text},
		{"9110 13.1.5", "a range if it has the date of a second later",
			"GET /p/42\nrange: bytes=0-9\nif-range: " + date.Add(time.Second).Format(http.TimeFormat), 200, "hit", ""},
		{"9110 13.1.5", "a range if it has the date of a second before",
			"GET /p/42\nrange: bytes=0-9\nif-range: " + date.Add(-time.Second).Format(http.TimeFormat), 200, "hit", ""},
		{"9110 13.2.2", "since its date, and If-Match", since(text) + "\nif-match: \"x\"", 200, "fwd=bypass", ""},
		{"9110 13.1.4", "unmodified since its date is the origin's to judge", "GET /p/42\nif-unmodified-since: " + text,
			200, "fwd=bypass", ""},
		{"9110 13.1.3", "since its date, without a credential", "GET /a/doc\nif-modified-since: " + text,
			401, "edge", "!last-modified"},
		{"9110 13.1.3", "since another, with one",
			"GET /a/doc\nx-device-id: dev\nx-device-token: secret\nif-modified-since: " +
				date.Add(-time.Second).Format(http.TimeFormat), 200, "hit", `etag: "auth"`},
		{"9111 5.2.2.7", "a miss under an auth rule is private", "GET /a/none\nx-device-id: dev\nx-device-token: secret",
			200, "fwd=uri-miss", "cache-control: private\nvary ~ .*x-device-id.*x-device-token.*"},
		{"9111 4.1", "a miss of the device's own is nobody else's", "GET /d/none\nx-device-id: dev\nx-device-token: secret",
			200, "fwd=uri-miss", "vary: *\ncache-control ~ no-store.*"},
		{"9111 5.2.2.7", "unless the upstream says otherwise", "GET /a/aged\nx-device-id: dev\nx-device-token: secret",
			200, "fwd=uri-miss", "cache-control: public, max-age=200"},
	}
}
