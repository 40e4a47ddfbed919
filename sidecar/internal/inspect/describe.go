package inspect

import (
	"github.com/gatehouse/gatehouse/internal/operatorapi"
	"github.com/gatehouse/gatehouse/verify/credential"
)

// listHolds returns the present holds of the limits, as operators see them.
func (i *Inspector) listHolds() []operatorapi.Hold {
	held := []operatorapi.Hold{}
	for _, h := range i.Verifier.ListHolds() {
		held = append(held, operatorapi.Hold(h))
	}
	return held
}

// describeDevice returns the verifier's description of a device, as operators see it.
func describeDevice(d *credential.Description) operatorapi.DeviceAtSidecar {
	known := operatorapi.DeviceAtSidecar{
		Refusal: string(d.Refusal), Version: d.Version, Expires: d.Expires, OldUntil: d.OldUntil, Pinned: d.Pinned,
		Sources: d.Sources,
	}
	if r := d.Refused; r != nil {
		known.Refused = &operatorapi.Refused{Reason: string(r.Reason), Text: r.Text, At: r.At, From: r.From}
	}
	return known
}
