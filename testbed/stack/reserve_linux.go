package stack

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
	tcp, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	family := syscall.AF_INET6
	var sockaddr syscall.Sockaddr = &syscall.SockaddrInet6{Port: tcp.Port, Addr: [16]byte(tcp.IP.To16())}
	if ip := tcp.IP.To4(); ip != nil {
		family, sockaddr = syscall.AF_INET, &syscall.SockaddrInet4{Port: tcp.Port, Addr: [4]byte(ip)}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := syscall.Bind(fd, sockaddr); err != nil {
		_ = syscall.Close(fd)
		return fmt.Errorf("bind %s: %w", address, err)
	}
	return syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
}
