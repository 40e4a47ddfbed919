package edge

import "unsafe"

// trap writes beyond the VM's memory, so that no code of the module runs any more, including deferred functions.
func trap() { *(*byte)(unsafe.Pointer(^uintptr(15))) = 0 }
