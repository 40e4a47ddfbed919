package inspect

import (
	"encoding/base64"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/apikey"
)

// placeholder stands for the right secret of a device.
const placeholder = "-"

// basicCredential returns a device's credential with the placeholder (RFC 7617).
func basicCredential(id string) string {
	return base64.StdEncoding.EncodeToString([]byte(id + ":" + placeholder))
}

// placeholderKey returns an API key of a device, with a placeholder of the right form for its secret.
func placeholderKey(id string) string {
	key, _ := apikey.Of(id, apikey.Secret(strings.Repeat("A", 26)))
	return key
}
