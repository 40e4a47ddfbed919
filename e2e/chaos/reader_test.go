package chaos

import (
	"bytes"
	"io"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

func TestDecode(t *testing.T) {
	const want = "a body, a body, a body"
	pack := func(w io.WriteCloser, into *bytes.Buffer) []byte {
		_, err := io.WriteString(w, want)
		if err == nil {
			err = w.Close()
		}
		require.NoError(t, err)
		return into.Bytes()
	}
	var zipped, brotlied, zstded bytes.Buffer
	encoder, err := zstd.NewWriter(&zstded)
	require.NoError(t, err)
	bodies := map[string][]byte{
		"gzip": pack(gzip.NewWriter(&zipped), &zipped), "br": pack(brotli.NewWriter(&brotlied), &brotlied),
		"zstd": pack(encoder, &zstded),
	}
	for _, coding := range codings {
		body := bodies[coding]
		if got, err := decodeBody(coding, coding, body); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v", coding, got, err)
		}
		if got, err := decodeBody(coding, "", []byte(want)); err != nil || string(got) != want {
			t.Errorf("%s was asked for, and none sent: got %q, %v", coding, got, err)
		}
		if _, err := decodeBody("", coding, body); err == nil {
			t.Errorf("%s was not asked for: no error", coding)
		}
		for _, wrong := range codings {
			if _, err := decodeBody(coding, coding, bodies[wrong]); (err == nil) != (coding == wrong) {
				t.Errorf("%s, and really %s: %v", coding, wrong, err)
			}
		}
		if _, err := decodeBody(coding, coding, body[:len(body)-1]); err == nil {
			t.Errorf("%s, cut: no error", coding)
		}
	}
}
