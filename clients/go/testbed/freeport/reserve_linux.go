package freeport

import (
	"fmt"
	"net"
	"syscall"
)

// reserve binds a socket to address, without listening, and keeps it until this process ends. Between the choice of a
// port and the start of the program that listens on it, and while that program restarts, no other process can reserve
// the port: without this, two test runs took each other's.
//
// The socket is bound without SO_REUSEADDR, so that bind fails if any other socket is bound, and sets it afterwards:
// Linux lets other sockets with SO_REUSEADDR, which all servers set, bind and listen beside a socket that doesn't
// listen.
func reserve(address string) error {
	fd, err := bind(address, false)
	if err != nil {
		return err
	}
	return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
}

// Probe returns an error if nothing can listen on address. It doesn't listen itself: a child that is being started has
// copies of this process's sockets until it executes its program, so the port of a listener that was just closed could
// still be in use. Envoy does not always fail then: it sets SO_REUSEPORT on its listeners, so two Envoys of one user
// share a port silently.
func Probe(address string) error {
	fd, err := bind(address, true)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// bind returns a socket that is bound to address, with SO_REUSEADDR or without.
func bind(address string, reuse bool) (fd int, err error) {
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return -1, err
	}
	family := syscall.AF_INET6
	var sockaddr syscall.Sockaddr = &syscall.SockaddrInet6{Port: tcp.Port, Addr: [16]byte(tcp.IP.To16())}
	if ip := tcp.IP.To4(); ip != nil {
		family, sockaddr = syscall.AF_INET, &syscall.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(ip)}
	}
	if fd, err = syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if reuse {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = syscall.Bind(fd, sockaddr)
	}
	if err != nil {
		_ = syscall.Close(fd)
		return -1, fmt.Errorf("bind %s: %w", address, err)
	}
	return fd, nil
}
