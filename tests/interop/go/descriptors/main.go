// Writes the schemas of gRPC's interoperability tests, with all that it imports, as a serialized FileDescriptorSet.
package main

import (
	"log"
	"os"
	"slices"
	"strings"

	orca "github.com/cncf/xds/go/xds/service/orca/v3"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: descriptors FILE")
	}
	set := &descriptorpb.FileDescriptorSet{}
	seen := map[string]bool{}
	add(set, seen, grpc_testing.File_grpc_testing_test_proto)
	add(set, seen, orca.File_xds_service_orca_v3_orca_proto)
	bytes, err := proto.Marshal(set)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], bytes, 0o644); err != nil {
		log.Fatal(err)
	}
}

// A file comes after those that it imports.
func add(set *descriptorpb.FileDescriptorSet, seen map[string]bool, file protoreflect.FileDescriptor) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for at := range imports.Len() {
		if imported := imports.Get(at).FileDescriptor; !declaresOptions(imported.Path()) {
			add(set, seen, imported)
		}
	}
	described := protodesc.ToFileDescriptorProto(file)
	described.Dependency = slices.DeleteFunc(described.Dependency, declaresOptions)
	set.File = append(set.File, described)
}

// Files of options alone, in proto2, which no message needs: a node compiles proto3.
func declaresOptions(path string) bool {
	return strings.HasPrefix(path, "validate/") || strings.HasPrefix(path, "udpa/annotations/")
}
