package policy

import (
	"slices"

	"github.com/gatehouse/gatehouse/wasm-filter/headermap"
)

// identityHeaders tell the upstream who the device is: nobody else may.
var identityHeaders = []string{DeviceHeader, PermissionsHeader}

// overrideHeaders are those by which a client can have some upstreams take its request for another one than was judged.
// Each is believed by something that is in wide use: the method's by Rack, Symfony, Laravel, Slim, WAI, ASP.NET Core's and
// Express's middleware (which has the three names of Google, Microsoft and IBM); the target's by Zend, Yii, WordPress and what
// else runs behind IIS; the last two by services that nginx's auth_request asks.
var overrideHeaders = []string{"x-http-method-override", "x-http-method", "x-method-override",
	"x-original-url", "x-rewrite-url", "x-original-uri", "x-original-method"}

// removes makes names headers that no upstream gets from a client, in any spelling, be there a rule or not.
func (e *Engine) removes(names []string) {
	for _, name := range names {
		e.removedBits |= headermap.NameBit(name)
	}
	e.removed = append(e.removed, names...)
}

// removedOf are the names among fields that no upstream gets.
//
//go:noinline
func (e *Engine) removedOf(fields headermap.Fields) (names []string) {
	for fields.More() {
		if name, _ := fields.Next(); e.isRemoved(name) {
			names = append(names, name)
		}
	}
	return names
}

// isRemoved reports whether an upstream may take name, in lower case, for one of the headers that no upstream gets.
func (e *Engine) isRemoved(name string) bool {
	for _, removed := range e.removed {
		if len(removed) == len(name) && spells(name, removed) {
			return true
		}
	}
	return false
}

// SecretHeaders are the headers in which a request shows a secret that no upstream gets, once an auth rule has let its
// device in: the credential's, and what an upstream may take for it. The proxy's JWT filter has removed a token.
func (e *Engine) SecretHeaders(r *Request) (names []string) {
	c := &e.config.Credentials
	if c.Forward {
		return nil
	}
	if c.Basic && r.has(headerAuthorization) || !c.Basic && r.has(headerSecret) {
		names = e.secret
	}
	if r.more != nil {
		names = r.spelled(names)
	}
	return names
}

// spelled is names, and those of headers in other spellings of the secret's.
//
//go:noinline
func (r *Request) spelled(names []string) []string {
	names = slices.Clip(names)
	for _, l := range r.more {
		if l.header == headerSpelled {
			names = append(names, l.value)
		}
	}
	return names
}
