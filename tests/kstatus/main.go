// What tools make of an object: kstatus, Flux with health expressions, Argo CD with a health check of its own.
//
//	kstatus CHECK.lua FAILED CURRENT <OBJECTS
//
// CHECK.lua is Argo CD's check, FAILED and CURRENT are Flux's expressions. Each line of the input is an object as JSON, and each
// line of the output has the three words for it. kstatus is the library itself. Around the other two, this is what the tools do:
// Flux compares the generations before it evaluates (fluxcd/pkg, runtime/cel, StatusEvaluator), and an expression that cannot be
// evaluated says that the object is in progress; Argo CD calls the script with the object as `obj` (gitops-engine, util/lua).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/google/cel-go/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 4 {
		log.Fatal("kstatus CHECK.lua FAILED CURRENT <OBJECTS")
	}
	check, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	failed, current := program(os.Args[2]), program(os.Args[3])
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var object map[string]any
		if err := json.Unmarshal(lines.Bytes(), &object); err != nil {
			log.Fatal(err)
		}
		fmt.Println(kstatus(object), flux(object, failed, current), argo(object, string(check)))
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func kstatus(object map[string]any) string {
	// The library asks for whole numbers as int64.
	var whole unstructured.Unstructured
	text, err := json.Marshal(object)
	if err != nil {
		log.Fatal(err)
	}
	if err := whole.UnmarshalJSON(text); err != nil {
		log.Fatal(err)
	}
	result, err := status.Compute(&whole)
	if err != nil {
		log.Fatal(err)
	}
	return result.Status.String()
}

func program(expression string) cel.Program {
	environment, err := cel.NewEnv(cel.Variable("status", cel.DynType))
	if err != nil {
		log.Fatal(err)
	}
	ast, issues := environment.Compile(expression)
	if issues.Err() != nil {
		log.Fatal(issues.Err())
	}
	compiled, err := environment.Program(ast)
	if err != nil {
		log.Fatal(err)
	}
	return compiled
}

func flux(object map[string]any, failed, current cel.Program) string {
	field := func(parent, name string) any {
		fields, _ := object[parent].(map[string]any)
		return fields[name]
	}
	if observed := field("status", "observedGeneration"); observed != nil && observed != field("metadata", "generation") {
		return "InProgress"
	}
	is := func(expression cel.Program) bool {
		value, _, err := expression.Eval(map[string]any{"status": object["status"]})
		return err == nil && value.Value() == true
	}
	switch {
	case is(failed):
		return "Failed"
	case is(current):
		return "Current"
	}
	return "InProgress"
}

func argo(object map[string]any, check string) string {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", table(state, object))
	if err := state.DoString(check); err != nil {
		log.Fatal(err)
	}
	return state.Get(-1).(*lua.LTable).RawGetString("status").String()
}

func table(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		fields := state.NewTable()
		for name, field := range value {
			fields.RawSetString(name, table(state, field))
		}
		return fields
	case []any:
		items := state.NewTable()
		for _, item := range value {
			items.Append(table(state, item))
		}
		return items
	case string:
		return lua.LString(value)
	case float64:
		return lua.LNumber(value)
	case bool:
		return lua.LBool(value)
	}
	return lua.LNil
}
