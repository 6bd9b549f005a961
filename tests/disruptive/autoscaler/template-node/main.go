// Reads a core/v1 Node in protobuf from standard input, as cluster-autoscaler does, and writes it as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	given, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var node corev1.Node
	if err := node.Unmarshal(given); err != nil {
		return fmt.Errorf("this is no core/v1 Node: %w", err)
	}
	// Fields that these types do not know would be lost here, and the Node shorter.
	known := node.DeepCopy()
	again, err := known.Marshal()
	if err != nil {
		return err
	}
	if len(again) < len(given) {
		return fmt.Errorf("%d of %d bytes are unknown", len(given)-len(again), len(given))
	}
	return json.NewEncoder(os.Stdout).Encode(&node)
}
