package freeport

import (
	"fmt"
	"net"
	"syscall"
)

// reserveAddress binds a socket to address, without listening, and keeps the socket until this process ends. No other
// process can reserve the port before the program that listens on the port has started, or while the program restarts:
// without reservations, two test runs took each other's ports.
//
// The socket is bound without SO_REUSEADDR, so that bind fails if any other socket is bound. SO_REUSEADDR is set
// afterwards: Linux lets sockets with SO_REUSEADDR, which all servers set, bind and listen beside a socket that doesn't
// listen.
func reserveAddress(address string) error {
	fd, err := bindSocket(address, false)
	if err != nil {
		return err
	}
	return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
}

// Probe returns an error if nothing can listen on address. Probe itself doesn't listen: until a starting child executes
// its program, the child has copies of this process's sockets, so the port of a closed listener could still be in use.
// Envoy does not always report a used port: Envoy sets SO_REUSEPORT on listeners, so two Envoys of the same user share
// a port silently.
func Probe(address string) error {
	fd, err := bindSocket(address, true)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

// bindSocket returns a socket bound to address, with or without SO_REUSEADDR.
func bindSocket(address string, reuse bool) (fd int, err error) {
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
