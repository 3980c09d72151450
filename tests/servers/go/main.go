// An SSH server in Go, on loopback, for the tests: commands and SFTP. Its one argument is the
// folder with host_key, authorized_keys and settings.json ({"address", "shell", "environment"}).
// It prints its port, and serves until its standard input ends.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

type settings struct {
	Address     string
	Shell       string
	Environment map[string]string
}

func main() {
	folder := os.Args[1]
	var set settings
	check(json.Unmarshal(read(folder, "settings.json"), &set))
	for name, value := range set.Environment {
		check(os.Setenv(name, value))
	}
	if set.Shell == "" {
		set.Shell = "/bin/sh"
	}
	config := configured(folder)
	check(os.Chdir(os.Getenv("HOME")))
	listener, err := net.Listen("tcp", set.Address+":0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			connection, err := listener.Accept()
			check(err)
			go serve(connection, config, set.Shell)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func configured(folder string) *ssh.ServerConfig {
	allowed, _, _, _, err := ssh.ParseAuthorizedKey(read(folder, "authorized_keys"))
	check(err)
	signer, err := ssh.ParsePrivateKey(read(folder, "host_key"))
	check(err)
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if bytes.Equal(key.Marshal(), allowed.Marshal()) {
				return nil, nil
			}
			return nil, fmt.Errorf("unknown key")
		},
	}
	config.AddHostKey(signer)
	return config
}

func serve(tcp net.Conn, config *ssh.ServerConfig, shell string) {
	connection, channels, requests, err := ssh.NewServerConn(tcp, config)
	if err != nil {
		log.Print(err)
		return
	}
	log.Printf("Accepted publickey for %s", connection.User())
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		go session(channel, requests, shell)
	}
}

func session(channel ssh.Channel, requests <-chan *ssh.Request, shell string) {
	for request := range requests {
		var asked struct{ Name string }
		is := request.Type
		known := (is == "exec" || is == "subsystem") && ssh.Unmarshal(request.Payload, &asked) == nil
		known = known && (is == "exec" || asked.Name == "sftp")
		if request.WantReply {
			_ = request.Reply(known, nil)
		}
		if known && is == "exec" {
			go run(channel, shell, asked.Name)
		} else if known {
			go serveFiles(channel)
		}
	}
}

func run(channel ssh.Channel, shell string, command string) {
	defer channel.Close()
	child := exec.Command(shell, "-c", command)
	child.Stdout, child.Stderr = channel, channel.Stderr()
	stdin, err := child.StdinPipe()
	check(err)
	if err := child.Start(); err != nil {
		log.Print(err)
		return
	}
	go func() {
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	_ = child.Wait()
	status := child.ProcessState.Sys().(syscall.WaitStatus)
	code := uint32(status.ExitStatus())
	if status.Signaled() {
		code = 128 + uint32(status.Signal())
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
}

func serveFiles(channel ssh.Channel) {
	defer channel.Close()
	server, err := sftp.NewServer(channel)
	check(err)
	if err := server.Serve(); err != nil && err != io.EOF {
		log.Print(err)
	}
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{0}))
}

func read(folder string, name string) []byte {
	data, err := os.ReadFile(filepath.Join(folder, name))
	check(err)
	return data
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
