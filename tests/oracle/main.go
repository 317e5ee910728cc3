// SPDX-License-Identifier: Apache-2.0

// Command oracle answers questions with the released Kubernetes libraries, so that the tests
// can compare gpudra with them. It reads one JSON document per line on stdin and writes one
// JSON document per line on stdout. Each sub-command lives in a file of its own and registers
// itself; tests/support/oracle.py builds and drives this program.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
)

// command answers every line of the input with one line of output.
type command func(in *bufio.Scanner, out io.Writer) error

var commands = map[string]command{}

// register is called from the init function of each sub-command's file.
func register(name string, run command) { commands[name] = run }

func main() {
	if len(os.Args) != 2 || commands[os.Args[1]] == nil {
		names := make([]string, 0, len(commands))
		for name := range commands {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: oracle %s\n", strings.Join(names, "|"))
		os.Exit(2)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 0, 1<<20), 1<<28)
	out := bufio.NewWriter(os.Stdout)
	flushing := flushWriter{out}
	if err := commands[os.Args[1]](in, flushing); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "oracle: reading stdin:", err)
		os.Exit(1)
	}
}

// flushWriter flushes after every write: the caller waits for each answer.
type flushWriter struct{ *bufio.Writer }

func (w flushWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		return n, err
	}
	return n, w.Writer.Flush()
}
